package transport_test

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"golang.org/x/net/http2"
)

// mangled returns a dialer whose connections have a mangler in each direction. Manglers change the
// frames but not their meaning.
func mangled(dial func(context.Context) (net.Conn, error), seed uint64) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		server, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		ours, client, err := pair()
		if err != nil {
			return nil, err
		}
		up := &mangler{random: rand.New(rand.NewPCG(seed, 1)), from: ours, to: server, toServer: true, window: 65535}
		down := &mangler{random: rand.New(rand.NewPCG(seed, 2)), from: server, to: ours, window: 65535}
		go up.run()
		go down.run()
		return client, nil
	}
}

// pair returns two ends of a connection.
func pair() (a, b net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var wait sync.WaitGroup
	wait.Go(func() { a, _ = l.Accept() })
	b, err = net.Dial("tcp", l.Addr().String())
	wait.Wait()
	return a, b, err
}

// A mangler forwards frames in one direction.
type mangler struct {
	random   *rand.Rand
	from, to net.Conn
	toServer bool
	window   uint32 // of new streams
	lowered  bool   // the announced window is smaller than window
	out      []byte
}

func (m *mangler) run() {
	defer m.to.Close()
	defer m.from.Close()
	if m.toServer {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(m.from, preface); err != nil {
			return
		}
		m.out = append(m.out, preface...)
	}
	settled := false
	for {
		var head [9]byte
		if _, err := io.ReadFull(m.from, head[:]); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(m.from, payload); err != nil {
			return
		}
		kind, flags, id := http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:])
		switch kind {
		case http2.FrameData:
			m.data(payload, flags, id)
		case http2.FrameHeaders:
			m.headers(payload, flags, id)
		default:
			m.frame(kind, flags, id, payload)
		}
		if kind == http2.FrameSettings {
			settled = true
			for ; len(payload) >= 6; payload = payload[6:] {
				if http2.SettingID(binary.BigEndian.Uint16(payload)) == http2.SettingInitialWindowSize {
					m.window = binary.BigEndian.Uint32(payload[2:])
				}
			}
		}
		if settled && (kind != http2.FrameHeaders && kind != http2.FrameContinuation || flags.Has(http2.FlagHeadersEndHeaders)) {
			m.more(id)
		}
		if !m.flush() {
			return
		}
	}
}

func (m *mangler) frame(kind http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	m.out = append(m.out, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), byte(kind), byte(flags))
	m.out = binary.BigEndian.AppendUint32(m.out, id)
	m.out = append(m.out, payload...)
}

// data splits a DATA frame into several.
func (m *mangler) data(b []byte, flags http2.Flags, id uint32) {
	for m.random.IntN(3) == 0 && len(b) > 0 {
		n := m.random.IntN(len(b) + 1)
		if m.random.IntN(2) == 0 {
			n = min(n, m.random.IntN(8)) // often in the middle of a prefix
		}
		if n > 0 || m.random.IntN(10) == 0 {
			m.frame(http2.FrameData, 0, id, b[:n])
		}
		b = b[n:]
	}
	m.frame(http2.FrameData, flags, id, b)
}

// headers adds padding and a priority, and splits the header block into several frames.
func (m *mangler) headers(b []byte, flags http2.Flags, id uint32) {
	if flags.Has(http2.FlagHeadersEndHeaders) && m.random.IntN(2) == 0 {
		n := m.random.IntN(len(b) + 1)
		rest := b[n:]
		b = m.wrap(b[:n:n], &flags)
		m.frame(http2.FrameHeaders, flags&^http2.FlagHeadersEndHeaders, id, b)
		for m.random.IntN(3) == 0 && len(rest) > 0 {
			n := m.random.IntN(len(rest))
			m.frame(http2.FrameContinuation, 0, id, rest[:n])
			rest = rest[n:]
		}
		m.frame(http2.FrameContinuation, http2.FlagContinuationEndHeaders, id, rest)
		return
	}
	b = m.wrap(b, &flags)
	m.frame(http2.FrameHeaders, flags, id, b)
}

func (m *mangler) wrap(b []byte, flags *http2.Flags) []byte {
	if m.toServer && m.random.IntN(3) == 0 {
		*flags |= http2.FlagHeadersPriority
		b = append([]byte{0, 0, 0, 0, 16}, b...)
	}
	if m.random.IntN(3) == 0 {
		n := m.random.IntN(256)
		*flags |= http2.FlagHeadersPadded
		b = append(append([]byte{byte(n)}, b...), make([]byte, n)...)
	}
	return b
}

// more adds frames that change nothing, or only how later frames are sent.
func (m *mangler) more(id uint32) {
	switch m.random.IntN(24) {
	case 0:
		m.frame(http2.FramePing, 0, 0, []byte("mangling"))
	case 1:
		m.frame(0x42, 0xff, id, make([]byte, m.random.IntN(100))) // an unknown type
	case 2:
		if m.toServer && id != 0 {
			m.frame(http2.FramePriority, 0, id, []byte{0, 0, 0, 0, 7})
		}
	case 3:
		m.lowered = true
		m.settings(http2.SettingInitialWindowSize, uint32(m.random.IntN(2000)))
	case 4:
		m.settings(http2.SettingHeaderTableSize, uint32(m.random.IntN(4097)))
	case 5:
		m.settings(http2.SettingID(0x4242), 1) // an unknown setting
	}
}

func (m *mangler) settings(id http2.SettingID, v uint32) {
	b := binary.BigEndian.AppendUint16(nil, uint16(id))
	m.frame(http2.FrameSettings, 0, 0, binary.BigEndian.AppendUint32(b, v))
}

// flush writes the frames in pieces of random length.
func (m *mangler) flush() bool {
	if m.lowered { // the other side may wait for a larger window
		defer func() {
			m.lowered = false
			m.settings(http2.SettingInitialWindowSize, m.window)
			_, _ = m.to.Write(m.out)
			m.out = m.out[:0]
		}()
	}
	b := m.out
	m.out = m.out[:0]
	for len(b) > 0 {
		n := len(b)
		if m.random.IntN(2) == 0 {
			n = 1 + m.random.IntN(n)
		}
		if _, err := m.to.Write(b[:n]); err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}
