package telemetry

import (
	"cmp"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// keeping returns changes that are written to dir until the function that it returns is called.
func keeping(t *testing.T, dir string) (*Changes, func()) {
	t.Helper()
	return keepingAfter(t, dir, nil)
}

// keepingAfter is keeping, in a process that gets the changes handed from the one before it.
func keepingAfter(t *testing.T, dir string, handed []capture.Change) (*Changes, func()) {
	t.Helper()
	c := NewChanges(&Recording{rec: capture.NewRecorder(capture.Config{Bytes: 64 << 10})}, dir)
	c.Restore(handed)
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

// since returns the changes since a time.
func since(c *Changes, at time.Time) (all []capture.Change) {
	_, _ = c.each(at, func(one *capture.Change) error { // fails only if this fails
		all = append(all, *one)
		return nil
	})
	return all
}

func pluginsOf(all []capture.Change) string {
	var names []string
	for _, c := range all {
		names = append(names, cmp.Or(c.Plugin, c.What))
	}
	return strings.Join(names, " ")
}

func down(plugin string, at int) capture.Change {
	return capture.Change{What: capture.PluginDown, Plugin: plugin, Time: time.Unix(int64(at), 0)}
}

func TestChangesOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	c, stop := keeping(t, dir)
	c.Add(down("a", 1))
	c.Add(down("b", 2))
	all := since(c, time.Unix(2, 0))
	assert.Equal(t, "b", pluginsOf(all), "before or after it is written")
	stop()
	_, file := changesFiles(dir)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"what":"plugin-down","plugin":"half`) // a crash
	require.NoError(t, err)
	require.NoError(t, f.Close())

	c, stop = keeping(t, dir)
	c.Add(down("c", 3))
	stop()
	all = since(c, time.Time{})
	assert.Equal(t, "a b unread c", pluginsOf(all))
	assert.Regexp(t, `^line 4 of .*/changes\.jsonl: cut off or damaged$`, all[2].Why)
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
		c.Add(down("p", i))
		if i%1000 == 999 || i == n-1 {
			require.NoError(t, c.write())
		}
	}
	all := since(c, time.Time{})
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
	c.Add(down("a", 1))
	require.Error(t, c.write())
	all := since(c, time.Time{})
	assert.Equal(t, "a", pluginsOf(all))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, c.write())
	c.Add(down("b", 2))
	all = since(c, time.Time{})
	assert.Equal(t, "a b", pluginsOf(all))
}

// Without a folder the changes pass to the next process in memory.
func TestChangesArePassedOnWithoutAFolder(t *testing.T) {
	c := NewChanges(&Recording{}, "")
	for i := range latestChanges + 5 {
		c.Add(down("a", i))
	}
	next := NewChanges(&Recording{}, "")
	next.Restore(c.Latest())
	next.Add(down("b", 99999))
	all := since(next, time.Unix(latestChanges, 0))
	assert.Equal(t, "a a a a a b", pluginsOf(all))
	c.PassOn()
	c.Add(capture.Change{What: capture.Stopped})
	latest := c.Latest()
	assert.Equal(t, capture.PluginDown, latest[len(latest)-1].What, "the next process tells")
}

func TestAskingForChangesSinceNoTimeIsAnError(t *testing.T) {
	c := NewChanges(&Recording{}, "")
	w := httptest.NewRecorder()
	c.Serve(w, httptest.NewRequest("GET", "/changes?since=yesterday", nil))
	assert.Equal(t, 400, w.Code)
	assert.Contains(t, w.Body.String(), "want a time such as")
}

// A change that is being written is neither missing nor there twice.
func TestAChangeBeingWrittenIsThereOnce(t *testing.T) {
	c, stop := keeping(t, t.TempDir())
	defer stop()
	for i := range 200 {
		c.Add(down("a", i))
		all := since(c, time.Time{})
		require.Len(t, all, i+1)
	}
}

// The file is that of a clock that was wrong, of a version that is newer, and of a disk that was damaged.
func TestAnOddFileSaysWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	_, file := changesFiles(dir)
	line := func(plugin, year string) string {
		return `{"time":"` + year + `-01-01T00:00:00Z","what":"plugin-down","plugin":"` + plugin + `"}` + "\n"
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"v":1,"program":"criproxy 1"}`+"\n"+line("future", "2099")+line("a", "2001")+
		`{"v":2,"program":"criproxy 9"}`+"\n"+line("newer", "2001")+
		`{"v":1}`+"\n"+line("b", "2002")+`{"time":"2002-01-01T00:00:00Z","what":"exploded"}`+"\n[1]\n{\"what\":7}\n\x00\xff\n"+line("c", "2003")+
		strings.Repeat("x", 3*maxChangeLine)+"\n"+line("d", "2004")+`{"time":"2005`), 0o600))
	c, stop := keeping(t, dir)
	c.Add(down("own", 0))
	stop()
	all := since(c, time.Time{})
	assert.Equal(t, "future a unread b unread unread c unread d unread own", pluginsOf(all), "in the order of the file")
	var why []string
	for _, one := range all {
		if one.What == capture.Unread {
			why = append(why, strings.Replace(one.Why, file, "FILE", 1))
		}
	}
	assert.Equal(t, []string{
		"lines 4 to 5 of FILE: written by a newer criproxy", "line 8 of FILE: written by a newer criproxy", "lines 9 to 11 of FILE: cut off or damaged",
		"line 13 of FILE: longer than 64 KiB", "line 15 of FILE: cut off or damaged",
	}, why)
	assert.Equal(t, "future b unread unread c unread d unread", pluginsOf(since(c, time.Date(2002, 1, 1, 0, 0, 0, 0, time.UTC))), "what stands beside")
}

// A FIFO made criproxy wait for ever.
func TestOnlyRegularFilesHaveChanges(t *testing.T) {
	dir := t.TempDir()
	_, file := changesFiles(dir)
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	c := NewChanges(&Recording{}, dir)
	c.Add(down("a", 1))
	require.ErrorContains(t, c.write(), "is not a regular file")
	assert.Equal(t, "unread a", pluginsOf(since(c, time.Time{})))
	require.NoError(t, os.Remove(file))
	require.NoError(t, c.write())
	assert.Equal(t, "a", pluginsOf(since(c, time.Time{})))
}

// Another process may have filled the file.
func TestAFileThatIsFullIsReplaced(t *testing.T) {
	for what, content := range map[string]string{
		"in bytes": `{"v":1}` + strings.Repeat(" ", fileBytes),
		"in lines": strings.Repeat(`{"v":1}`+"\n", fileChanges),
	} {
		dir := t.TempDir()
		c := NewChanges(&Recording{}, dir)
		c.Add(down("a", 1))
		require.NoError(t, c.write())
		older, newer := changesFiles(dir)
		require.NoError(t, os.WriteFile(newer, []byte(content), 0o600))
		c.Add(down("b", 2))
		require.NoError(t, c.write())
		info, err := os.Stat(older)
		require.NoError(t, err, what)
		assert.Len(t, content, int(info.Size()))
		all := since(c, time.Unix(2, 0))
		assert.Equal(t, "b", pluginsOf(all[len(all)-1:]))
	}
}

// A crash loses the end of the recording, which the files of changes have.
func TestTheRecordingGetsTheChangesThatItLacks(t *testing.T) {
	dir := t.TempDir()
	c, stop := keeping(t, dir)
	for i, name := range []string{"a", "b", "c"} {
		c.Add(down(name, i))
	}
	stop()
	for _, has := range []int{0, 1, 3} {
		crashed := capture.NewRecorder(capture.Config{Schema: codec.NewSchema()})
		for _, one := range since(c, time.Time{})[:has] {
			crashed.Change(one)
		}
		left, _ := crashed.Snapshot(&capture.FileHeader{})
		next := NewChanges(&Recording{rec: capture.NewRecorder(capture.Config{Schema: codec.NewSchema()})}, dir)
		require.NoError(t, next.rec.rec.Restore(left))
		var told, recorded []capture.Change
		next.Replay(Conditions{}, func(one *capture.Change) { told = append(told, *one) })
		next.Add(down("d", 4))
		var ev capture.Event
		for f := next.rec.Follow(); f.TryNext(&ev); {
			recorded = append(recorded, *ev.Change)
		}
		assert.Equal(t, "a b c", pluginsOf(told))
		assert.Equal(t, "a b c d", pluginsOf(recorded), "it had %d", has)
	}
}

// A process that takes over may have another folder than the one before it: with changes of long ago, or with those that
// the process before it had written there, or none.
func TestAHandoverToAnotherFolderLosesNoChange(t *testing.T) {
	known, other := t.TempDir(), t.TempDir()
	first, stop := keeping(t, known)
	first.Add(down("a", 1))
	handOver := func(from *Changes, stop func(), dir string) (*Changes, func()) {
		from.Hold()
		to, stopped := keepingAfter(t, dir, from.Latest())
		from.PassOn()
		stop()
		return to, stopped
	}
	second, stop := handOver(first, stop, "")
	second.Add(down("b", 2))
	third, stop := handOver(second, stop, known)
	assert.Equal(t, "a b", pluginsOf(since(third, time.Time{})))
	third.Add(down("c", 3))
	fourth, stop := handOver(third, stop, other)
	fourth.Add(down("d", 4))
	assert.Equal(t, "a b c d", pluginsOf(since(fourth, time.Time{})))
	fifth, stop := handOver(fourth, stop, known)
	stop()
	for _, c := range []*Changes{fifth, NewChanges(&Recording{}, known)} {
		assert.Equal(t, "a b c d", pluginsOf(since(c, time.Time{})))
	}
	assert.Equal(t, "a b c d", pluginsOf(since(NewChanges(&Recording{}, other), time.Time{})))
}

// What one process cannot write, the next one does, and only one of them.
func TestAHandoverOnAFullDiskLosesNoChange(t *testing.T) {
	dir := t.TempDir()
	_, file := changesFiles(dir)
	require.NoError(t, os.Mkdir(file, 0o700)) // no change can be written
	first, second := NewChanges(&Recording{}, dir), NewChanges(&Recording{}, dir)
	for i := range latestChanges {
		first.Add(down("many", -i))
	}
	first.Add(down("a", 1))
	first.Hold()
	second.Restore(first.Latest())
	second.Add(down("b", 2))
	require.Error(t, second.write())
	require.NoError(t, os.Remove(file))
	require.NoError(t, first.write())
	assert.NoFileExists(t, file, "another process is about to write")
	require.NoError(t, second.write())
	first.GoOn() // the second failed after all
	first.Add(down("c", 3))
	require.NoError(t, first.write())
	all := since(NewChanges(&Recording{}, dir), time.Time{})
	require.Len(t, all, latestChanges+3)
	assert.Equal(t, "a b c", pluginsOf(all[latestChanges:]))
}

// A plugin is down while the next process starts. The process that hands over notes it, once.
func TestAHandoverLosesNothingToldMeanwhile(t *testing.T) {
	dir := t.TempDir()
	c := NewChanges(&Recording{}, dir)
	c.Add(down("a", 1))
	c.Hold()
	handed := c.Latest()
	c.Add(down("b", 2))
	next := NewChanges(&Recording{}, dir)
	next.Restore(handed)
	require.NoError(t, next.write())
	for range 2 {
		assert.Equal(t, "a b", pluginsOf(since(c, time.Time{})))
	}
	next.Add(down("c", 3))
	require.NoError(t, next.write())
	c.PassOn()
	require.NoError(t, c.write())
	assert.Equal(t, "a c b", pluginsOf(since(NewChanges(&Recording{}, dir), time.Time{})))
}

// A runtime got back a name that it had before, and goes on as it was then. After a handover, or one that failed, that was taken
// for what is in the file of then, and what came before it was not written either.
func TestAChangeLikeAnEarlierOneIsWritten(t *testing.T) {
	condition := func(backend, what string, at int) capture.Change {
		return capture.Change{Backend: backend, What: what, Time: time.Unix(int64(at), 0)}
	}
	for name, after := range map[string]func(c *Changes) *Changes{
		"a handover that failed": func(c *Changes) *Changes { c.GoOn(); return c },
		"a handover": func(c *Changes) *Changes {
			next := NewChanges(&Recording{}, c.dir)
			next.Restore(c.Latest())
			c.PassOn()
			return next
		},
	} {
		dir := t.TempDir()
		first := NewChanges(&Recording{}, dir)
		first.Add(condition("a", capture.Up, 1))
		first.Add(condition("a", capture.Removed, 2))
		first.Add(condition("b", capture.Up, 1))
		first.Hold()
		c := after(first)
		c.Add(condition("b", capture.Removed, 3))
		c.Add(condition("a", capture.Up, 1))
		require.NoError(t, c.write())
		for _, one := range []*Changes{c, NewChanges(&Recording{}, dir)} {
			var all []string
			for _, change := range since(one, time.Time{}) {
				all = append(all, change.Backend+" "+change.What)
			}
			assert.Equal(t, []string{"a up", "a removed", "b up", "b removed", "a up"}, all, name)
		}
	}
}
