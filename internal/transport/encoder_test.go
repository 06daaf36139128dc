package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// A decoder whose table is only as large as its last setting can read what the encoder writes,
// however often the setting changes.
func TestTheEncoderKeepsToTheTableOfThePeer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var got []hpack.HeaderField
	d := hpack.NewDecoder(tableSize, func(f hpack.HeaderField) { got = append(got, f) })
	e := newEncoder()
	for round := range 2000 {
		if r.IntN(20) == 0 {
			size := []uint32{0, 40, 100, 1000, 4096, 1 << 20}[r.IntN(6)]
			e.limit(size)
			d.SetAllowedMaxDynamicTableSize(min(size, tableSize))
		}
		var want []hpack.HeaderField
		b := e.begin(nil)
		for range r.IntN(12) {
			f := hpack.HeaderField{Name: fmt.Sprintf("name-%d", r.IntN(5)), Value: fmt.Sprintf("%d", r.IntN(30))}
			switch r.IntN(4) {
			case 0:
				f = hpack.HeaderField{Name: ":path", Value: fmt.Sprintf("/service/%d", r.IntN(100))}
				b = e.repeated(b, f.Name, f.Value)
			case 1:
				b = e.repeated(b, f.Name, f.Value)
			case 2:
				b = e.varying(b, f.Name, f.Value)
			case 3:
				f.Value = string(make([]byte, r.IntN(300)))
				b = e.once(b, f.Name, f.Value)
			}
			want = append(want, f)
		}
		got = nil
		_, err := d.Write(b)
		require.NoError(t, err, round)
		require.NoError(t, d.Close(), round)
		require.Equal(t, want, got, round)
	}
}

func TestRepeatedFieldsTakeOneByte(t *testing.T) {
	e := newEncoder()
	e.repeated(nil, "content-type", grpcType)
	e.repeated(nil, "grpc-status", "0")
	assert.Len(t, e.repeated(nil, "content-type", grpcType), 1)
	assert.Len(t, e.repeated(nil, "grpc-status", "0"), 1)
	assert.Len(t, e.static(nil, statusOK), 1)
}

func TestTimeoutsAreRoundedUpAndFit(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0n", 0: "0n", 1: "1n", 99_999_999: "99999999n", 100_000_000: "100000u", 100_000_001: "100001u",
		2 * time.Minute: "120000m", 30 * time.Hour: "108000S", 1 << 62: "76861434M",
	} {
		assert.Equal(t, want, EncodeTimeout(d), d)
	}
	for s, want := range map[string]time.Duration{"1n": 1, "12345678u": 12345678 * time.Microsecond, "0H": 0, "99999999H": 1<<63 - 1, "7M": 7 * time.Minute} {
		got, err := decodeTimeout(s)
		assert.NoError(t, err)
		assert.Equal(t, want, got, s)
	}
}

func FuzzStatusMessage(f *testing.F) {
	f.Add("plain")
	f.Add("50% of \u00fc \xff\x00\n")
	f.Fuzz(func(t *testing.T, s string) {
		e := EncodeMessage(s)
		assert.True(t, httpguts.ValidHeaderFieldValue(e))
		for _, c := range []byte(e) {
			require.True(t, c >= ' ' && c <= '~')
		}
		assert.Equal(t, string([]rune(s)), DecodeMessage(e))
		DecodeMessage(s)
	})
}
