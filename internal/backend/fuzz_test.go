package backend

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/inventory"
)

// FuzzFile checks that a cache file is read, or refused with a reason. The test gives each file
// the right checksum, so that the checksum is not what protects the rest.
func FuzzFile(f *testing.F) {
	var body bytes.Buffer
	content := &fileContent{
		Backend: "beta.io", BootID: "boot", Lists: map[string]inventory.Saved{"List": {Reply: []byte("\x0a\x01x"), Statuses: map[string][]byte{"x": []byte("y")}, Former: []string{"z"}}},
		Replies: map[string][]byte{"Version": {}},
	}
	require.NoError(f, content.encode(gob.NewEncoder(&body)))
	f.Add(body.Bytes(), true)
	f.Add(body.Bytes()[:body.Len()/2], true)
	f.Add([]byte(fileMagic), false)
	f.Fuzz(func(t *testing.T, data []byte, summed bool) {
		if summed {
			sum := sha256.Sum256(data)
			data = append(append([]byte(fileMagic), sum[:]...), data...)
		}
		content, err := decodeFile(data)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotNil(t, content)
	})
}
