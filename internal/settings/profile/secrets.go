package profile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/dump"
)

// Secrets returns the fields of s whose content the profile hides.
func (p *Profile) Secrets(s *codec.Schema) (dump.Secrets, error) {
	rules, keyed := map[string]string{}, map[string]string{}
	keys := map[string][]string{} // :: "Message.map" → keys
	var errs []error
	for _, secret := range p.Secret {
		field, key, err := secretKey(secret)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("secret: %s: %w", secret, err))
		case key == "":
			rules[field] = ""
		default:
			keyed[field] = ""
			keys[field] = append(keys[field], key)
		}
	}
	all := MessagesOf(p.Describes(s)).All()
	whole := map[protoreflect.FullName]bool{}
	for _, field := range sortedKeys(rules) {
		found := false
		for _, md := range all {
			dot := strings.LastIndexByte(field, '.')
			if dot < 0 {
				break
			}
			message, name := field[:dot], field[dot+1:]
			fd := md.Fields().ByName(protoreflect.Name(name))
			if fd != nil && !md.IsMapEntry() && (message == "*" && holdsText(fd) || message == string(md.Name()) || message == string(md.FullName())) {
				whole[fd.FullName()] = true
				found = true
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("secret: %s: there is no such field", field))
		}
	}
	byField := map[protoreflect.FullName][]string{}
	for _, field := range sortedKeys(keyed) {
		found := false
		message, name, _ := strings.Cut(field, ".")
		for _, md := range all {
			fd := md.Fields().ByName(protoreflect.Name(name))
			if fd == nil || !fd.IsMap() || fd.MapKey().Kind() != protoreflect.StringKind || message != "*" && message != string(md.Name()) {
				continue
			}
			found = true
			byField[fd.FullName()] = append(byField[fd.FullName()], keys[field]...)
		}
		if !found {
			errs = append(errs, fmt.Errorf("secret: %s: there is no map of that name with strings for keys", field))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return dump.Secrets{}, err
	}
	return dump.Secrets{
		Field: func(fd protoreflect.FieldDescriptor) bool { return whole[fd.FullName()] },
		Keys:  func(fd protoreflect.FieldDescriptor) []string { return byField[fd.FullName()] },
	}, nil
}

// secretKey splits an entry under secret: "Message.field", or
// "Message.map[\"key\"]".
func secretKey(s string) (field, key string, err error) {
	field, quoted, ok := strings.Cut(s, "[")
	if !ok {
		return s, "", nil
	}
	key, err = strconv.Unquote(strings.TrimSuffix(quoted, "]"))
	if err != nil || key == "" || !strings.HasSuffix(quoted, "]") {
		return "", "", errors.New(`want "Message.map[\"key\"]"`)
	}
	return field, key, nil
}
