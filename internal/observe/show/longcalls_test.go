package show

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

func TestStatusSaysForWhichCallsAnOldProcessStays(t *testing.T) {
	since := time.Date(2026, 11, 27, 10, 0, 0, 0, time.Local)
	call := admin.LongCall{PID: 7, Method: "/a.B/Stop", ID: "beta.io__1", Client: "kubelet", Since: since, Until: since.Add(time.Hour)}
	ours := call
	ours.PID, ours.ID = 8, ""
	var b bytes.Buffer
	LongCalls(NewScreen(&b), 8, []admin.LongCall{call, ours})
	assert.Contains(t, b.String(), "process 7, which has handed over, stays for /a.B/Stop of beta.io__1 by kubelet, since 2026-11-27 10:00:00, until 2026-11-27 11:00:00\n")
	assert.Contains(t, b.String(), "what was before the reload stays for /a.B/Stop by kubelet, since ")
	b.Reset()
	LongCalls(NewScreen(&b), 8, nil)
	assert.Empty(t, b.String())
}
