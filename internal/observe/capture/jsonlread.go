package capture

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// jsonDecoder reads JSON lines.
type jsonDecoder struct {
	r    *bufio.Reader
	line int
}

// jsonEvent is a line. The reader ignores the decoded message, which is for people, and uses raw.
type jsonEvent struct {
	Kind string    `json:"kind"`
	Time time.Time `json:"time"`
	Code string    `json:"code"`
	Event
}

func (d *jsonDecoder) begin() (FileHeader, error) {
	line, err := d.read()
	if err != nil {
		return FileHeader{}, err
	}
	var h struct {
		Kind string `json:"kind"`
		FileHeader
	}
	if err := json.Unmarshal(line, &h); err != nil || h.Kind != "file" || h.Version < 1 {
		return FileHeader{}, errOther
	}
	return h.FileHeader, nil
}

// read returns the next line that is not empty.
func (d *jsonDecoder) read() ([]byte, error) {
	var whole []byte
	for {
		part, err := d.r.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case len(whole) > maxRecord:
			return nil, fmt.Errorf("line %d is longer than %d bytes", d.line+1, maxRecord)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(whole)) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
		d.line++
		if whole = bytes.TrimSpace(whole); len(whole) > 0 {
			return whole, nil
		}
	}
}

func (d *jsonDecoder) next(ev *Event) error {
	for {
		line, err := d.read()
		if err != nil {
			return err
		}
		var j jsonEvent
		if err := json.Unmarshal(line, &j); err != nil {
			return fmt.Errorf("line %d: %w", d.line, err)
		}
		if j.Kind == "file" { // concatenated captures
			continue
		}
		if *ev, err = j.event(); err != nil {
			return fmt.Errorf("line %d: %w", d.line, err)
		}
		return nil
	}
}

func (j *jsonEvent) event() (Event, error) {
	ev := j.Event
	ev.Time = j.Time
	if ev.Kind = kindOf(j.Kind); ev.Kind == 0 {
		return ev, fmt.Errorf("invalid kind %q: want one of %s", j.Kind, strings.Join(kindNames[1:], ", "))
	}
	if ev.Kind == Changed && (ev.Change == nil || ev.Change.What == "") {
		return ev, errors.New("a change does not say what changed")
	}
	if ev.Kind == Changed {
		ev.Backend = ev.Change.Backend
	}
	if ev.Kind == End {
		code, err := codeOf(j.Code)
		if err != nil {
			return ev, err
		}
		ev.Code = code
	}
	for key, values := range ev.Metadata {
		if strings.HasSuffix(key, "-bin") {
			for i, v := range values {
				b, err := base64.StdEncoding.DecodeString(v)
				if err != nil {
					return ev, fmt.Errorf("metadata %s: %w", key, err)
				}
				values[i] = string(b)
			}
		}
	}
	return ev, nil
}

// codeOf returns the code with the given name.
func codeOf(name string) (codes.Code, error) {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if c.String() == name {
			return c, nil
		}
	}
	var n uint32
	if _, err := fmt.Sscanf(name, "Code(%d)", &n); err == nil {
		return codes.Code(n), nil
	}
	return 0, fmt.Errorf("invalid code %q: want one such as OK or NotFound", name)
}
