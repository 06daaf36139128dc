package telemetry

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/internal/observe/capture"
)

// keeping returns changes that are written to dir until the function that it returns is called.
func keeping(t *testing.T, dir string) (*Changes, func()) {
	t.Helper()
	c := NewChanges(&Recording{rec: capture.NewRecorder(capture.Config{Bytes: 64 << 10})}, dir)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c.Keep(stop)
	}()
	return c, func() {
		close(stop)
		<-ended
	}
}

func plugins(all []capture.Change) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Plugin)
	}
	return strings.Join(names, " ")
}

func lost(plugin string, at int) capture.Change {
	return capture.Change{What: capture.PluginLost, Plugin: plugin, Time: time.Unix(int64(at), 0)}
}

func TestChangesOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	c, stop := keeping(t, dir)
	c.Add(lost("a", 1))
	c.Add(lost("b", 2))
	all, err := c.Since(time.Unix(2, 0))
	require.NoError(t, err)
	assert.Equal(t, "b", plugins(all), "before or after it is written")
	stop()
	_, file := changesFiles(dir)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"what":"plugin-lost","plugin":"half`) // a crash
	require.NoError(t, err)
	require.NoError(t, f.Close())

	c, stop = keeping(t, dir)
	c.Add(lost("c", 3))
	stop()
	all, err = c.Since(time.Time{})
	require.NoError(t, err)
	assert.Equal(t, "a b c", plugins(all))
	assert.Equal(t, os.Getpid(), all[0].PID)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestAtLeastTenThousandChangesAreKept(t *testing.T) {
	dir := t.TempDir()
	c := NewChanges(&Recording{}, dir)
	const n = 2*fileChanges + 100
	for i := range n {
		c.Add(lost("p", i))
		if i%1000 == 999 || i == n-1 {
			require.NoError(t, c.write())
		}
	}
	all, err := c.Since(time.Time{})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(all), fileChanges)
	assert.Less(t, len(all), n, "the folder is bounded")
	assert.Equal(t, int64(n-1), all[len(all)-1].Time.Unix())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, files, 2)
}

func TestAnUnwritableFolderLosesNoChange(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	c := NewChanges(&Recording{}, dir)
	c.Add(lost("a", 1))
	require.Error(t, c.write())
	all, err := c.Since(time.Time{})
	require.NoError(t, err)
	assert.Equal(t, "a", plugins(all))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, c.write())
	c.Add(lost("b", 2))
	all, err = c.Since(time.Time{})
	require.NoError(t, err)
	assert.Equal(t, "a b", plugins(all))
}

// Without a folder the changes pass to the next process in memory.
func TestChangesArePassedOnWithoutAFolder(t *testing.T) {
	c := NewChanges(&Recording{}, "")
	for i := range latestChanges + 5 {
		c.Add(lost("a", i))
	}
	next := NewChanges(&Recording{}, "")
	next.Restore(c.Latest())
	next.Add(lost("b", 99999))
	all, err := next.Since(time.Unix(latestChanges, 0))
	require.NoError(t, err)
	assert.Equal(t, "a a a a a b", plugins(all))
	c.PassOn()
	c.Add(capture.Change{What: capture.Stopped})
	latest := c.Latest()
	assert.Equal(t, capture.PluginLost, latest[len(latest)-1].What, "the next process tells")
}

func TestAskingForChangesSinceNoTimeIsAnError(t *testing.T) {
	c := NewChanges(&Recording{}, "")
	w := httptest.NewRecorder()
	c.Serve(w, httptest.NewRequest("GET", "/changes?since=yesterday", nil))
	assert.Equal(t, 400, w.Code)
	assert.Contains(t, w.Body.String(), "want a time such as")
}

// A plugin that fails now and then is one lost plugin, not a hundred changes.
func TestAFlappingPluginIsOneChange(t *testing.T) {
	var all []capture.Change
	l := NewHookLog(func(c capture.Change) { all = append(all, c) })
	for range 5 {
		l.changed("p", assert.AnError)
		l.changed("p", nil)
	}
	require.Len(t, all, 1)
	assert.Equal(t, capture.PluginLost, all[0].What)
	l.lost["p"] = time.Now().Add(-steady)
	l.changed("p", nil)
	require.Len(t, all, 2)
	assert.Equal(t, capture.PluginUp, all[1].What)
}

// A change that is being written is neither missing nor there twice.
func TestAChangeBeingWrittenIsThereOnce(t *testing.T) {
	c, stop := keeping(t, t.TempDir())
	defer stop()
	for i := range 200 {
		c.Add(lost("a", i))
		all, err := c.Since(time.Time{})
		require.NoError(t, err)
		require.Len(t, all, i+1)
	}
}
