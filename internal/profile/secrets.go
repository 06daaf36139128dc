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
	whole, keys := map[protoreflect.FullName]bool{}, map[protoreflect.FullName][]string{} // :: field → hidden; keys of it that are
	var errs []error
	all := MessagesOf(p.Describes(s)).All()
	for _, secret := range p.Secret {
		field, key, err := secretKey(secret)
		if err != nil {
			errs = append(errs, fmt.Errorf("secret: %s: %w", secret, err))
			continue
		}
		dot := strings.LastIndexByte(field, '.')
		message, name := field[:max(dot, 0)], field[dot+1:]
		found := false
		for _, md := range all {
			fd := md.Fields().ByName(protoreflect.Name(name))
			switch {
			case fd == nil || md.IsMapEntry() || message != "*" && message != string(md.Name()) && message != string(md.FullName()):
			case key != "" && fd.IsMap() && fd.MapKey().Kind() == protoreflect.StringKind:
				keys[fd.FullName()] = append(keys[fd.FullName()], key)
				found = true
			case key == "" && (message != "*" || holdsText(fd)):
				whole[fd.FullName()] = true
				found = true
			}
		}
		switch {
		case found:
		case key == "":
			errs = append(errs, fmt.Errorf("secret: %s: there is no such field", field))
		default:
			errs = append(errs, fmt.Errorf("secret: %s: there is no map of that name with strings for keys", field))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return dump.Secrets{}, err
	}
	return dump.Secrets{
		Field: func(fd protoreflect.FieldDescriptor) bool { return whole[fd.FullName()] },
		Keys:  func(fd protoreflect.FieldDescriptor) []string { return keys[fd.FullName()] },
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
