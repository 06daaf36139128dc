package junit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAComparisonNamesWhatEndsOtherwise(t *testing.T) {
	direct := Outcomes{"[It] runs": {State: Passed}, "[It] stops": {State: Passed}, "[It] flies": {State: Failed}, "[It] swims": {State: Skipped}}
	c := Comparison{Columns: []string{"runtime", "how"}, Reasons: map[string]string{"[It] stops": "it may"}}
	c.Add(direct, nil, "containerd", "directly")
	c.Add(direct, direct, "containerd", "as primary")
	c.Add(Outcomes{"[It] runs": {State: Passed}, "[It] stops": {State: Failed}, "[It] swims": {State: Skipped}, "[It] dives": {State: Passed}},
		direct, "containerd", "as second")
	assert.Equal(t, `| runtime | how | passed | failed | skipped | not as directly |
| --- | --- | --- | --- | --- | --- |
| containerd | directly | 2 | 1 | 1 | 0 |
| containerd | as primary | 2 | 1 | 1 | 0 |
| containerd | as second | 2 | 1 | 1 | 3 |
`, c.Table())
	assert.Equal(t, `
With containerd, directly, these fail:

- flies

With containerd, as second, these end otherwise than directly:

- dives: passed and not missing
- flies: missing and not failed
- stops: failed and not passed; it may
`, c.Lists())
}
