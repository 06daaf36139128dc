package telemetry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
)

// after returns the changes from number next on, with the number of the change after them, and a channel that is
// closed when another one comes. Numbers that were dropped are passed over: a reader that is so slow finds them in the files.
func (c *Changes) after(next uint64) ([]capture.Change, uint64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := max(next, c.dropped) - c.dropped
	return slices.Clone(c.latest[min(from, uint64(len(c.latest))):]), c.next(), c.news
}

// begins returns the time of the oldest change, if what happened earlier was forgotten when the proxy began. Otherwise it is zero.
func (c *Changes) begins() (t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir == "" && len(c.latest) > 0 {
		t = c.latest[0].Time
	}
	return t
}

// Serve answers GET /changes: a line of JSON for each change since the time since, if it is given; with follow=true
// later ones follow. No change is missing between the two, and none is there twice: the first part ends with a number, and the
// second begins with the next one.
func (c *Changes) Serve(w http.ResponseWriter, r *http.Request) {
	var since time.Time
	if s := r.FormValue("since"); s != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			http.Error(w, fmt.Sprintf("since=%s: want a time such as 2006-01-02T15:04:05Z", s), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if begins := c.begins(); !begins.IsZero() {
		w.Header().Set(admin.BeginsHeader, begins.Format(time.RFC3339Nano))
	}
	enc := json.NewEncoder(w)
	next, err := c.each(since, func(one *capture.Change) error { return enc.Encode(one) })
	if err != nil {
		return // the client has left
	}
	var all []capture.Change
	follow := r.FormValue("follow") == "true"
	for {
		for i := range all {
			if enc.Encode(&all[i]) != nil {
				return // the client has left
			}
		}
		if http.NewResponseController(w).Flush() != nil || !follow {
			return
		}
		var news <-chan struct{}
		if all, next, news = c.after(next); len(all) > 0 {
			continue
		}
		select {
		case <-news:
		case <-r.Context().Done(): // the process ends: what it says last is there already
			all, next, _ = c.after(next)
			follow = false
		}
	}
}
