package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// A Reader reads the events of a file in any of the formats, and of a file of [Keeper], which it detects from the first
// bytes. The file may be compressed.
type Reader struct {
	header FileHeader
	dec    decoder
	close  func() error
}

// decoder reads one format. Next returns io.EOF at the end.
type decoder interface {
	begin() (FileHeader, error)
	next(ev *Event) error
}

// maxRecord bounds the length of one event in a file: room for two of the largest messages, each as
// base64 and decoded.
const maxRecord = 256 << 20

// zstdMagic is how a file that is compressed begins.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// maxLeg is the largest number of a leg in a file.
const maxLeg = 1<<16 - 1

// NewReader returns a reader of r.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	magic, err := br.Peek(4)
	if len(magic) == 0 {
		if err == io.EOF {
			return nil, fmt.Errorf("the capture is empty")
		}
		return nil, fmt.Errorf("reading a capture: %w", err)
	}
	c := &Reader{close: func() error { return nil }}
	if bytes.Equal(magic, zstdMagic) {
		unpacked, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRecord))
		if err != nil {
			return nil, fmt.Errorf("reading a compressed capture: %w", err)
		}
		c.close = func() error { unpacked.Close(); return nil }
		br = bufio.NewReaderSize(unpacked, 1<<16)
		magic, _ = br.Peek(4) // the decoder reports the error
	}
	switch {
	case bytes.HasPrefix(magic, []byte(blockMagic)):
		c.dec = &blockDecoder{r: br}
	case bytes.HasPrefix(magic, []byte("{")):
		c.dec = &jsonDecoder{r: br}
	case bytes.Equal(magic, []byte{0x0a, 0x0d, 0x0d, 0x0a}):
		c.dec = newPcapDecoder(br)
	default:
		c.dec = &binlogDecoder{r: br}
	}
	if c.header, err = c.dec.begin(); err != nil {
		return nil, err
	}
	if c.header.Version > Version {
		return nil, fmt.Errorf("the capture has version %d, but this criproxy reads only versions up to %d; use a newer criproxy", c.header.Version, Version)
	}
	return c, nil
}

// Open returns a reader of the file at path; "-" is standard input.
func Open(path string) (*Reader, error) {
	if path == "-" {
		return NewReader(os.Stdin)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; want a recording, as criproxy dump or capture writes it", err)
	}
	r, err := NewReader(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	unpacked := r.close
	r.close = func() error { return errors.Join(unpacked(), file.Close()) }
	return r, nil
}

// Header returns the header of the file, which says where the events come from.
func (r *Reader) Header() *FileHeader { return &r.header }

// Next reads the next event into ev. It returns io.EOF at the end, and io.ErrUnexpectedEOF if the
// file ends in the middle of an event, as it may while it is being written.
func (r *Reader) Next(ev *Event) error {
	if err := r.dec.next(ev); err != nil {
		return err
	}
	if ev.Leg < 0 || ev.Leg > maxLeg || ev.Size < 0 || ev.Mono < 0 {
		return fmt.Errorf("event %d of the capture has leg %d, %d bytes, and a time of %v since its recorder began; want a leg from 0 to %d, and no negative numbers",
			ev.Seq, ev.Leg, ev.Size, ev.Mono, maxLeg)
	}
	return nil
}

// Close closes the file, if Open opened one.
func (r *Reader) Close() error { return r.close() }
