package table

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMergedTablesKeepWhatIsNotReplaced(t *testing.T) {
	dst := Table{"a": Table{"x": 1, "y": 2}, "b": 3}
	Merge(dst, Table{"a": Table{"y": 4, "z": Table{"q": 5}}, "b": Table{"r": 6}})
	assert.Equal(t, Table{"a": Table{"x": 1, "y": 4, "z": Table{"q": 5}}, "b": Table{"r": 6}}, dst)
}
