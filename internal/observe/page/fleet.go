package page

import (
	"context"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/criproxy/criproxy/internal/observe/admin"
)

// FleetConfig says which nodes to show.
type FleetConfig struct {
	// Page returns what the page of a node needs, except the address of its admin socket.
	Page func() Config

	// List returns the nodes. It is called again and again, because nodes come and go.
	List func(context.Context) ([]admin.Node, error)
	// Ask asks a node for its report, and how far its clock is ahead. Several calls may be at the same time.
	Ask func(ctx context.Context, n admin.Node) (*admin.Report, time.Duration, error)
	// Timeout bounds each of these calls.
	Timeout time.Duration
	// Fragment opens the page of a node at what it selects, such as pod=web; empty for all.
	Fragment string
}

const (
	roundEvery   = 10 * time.Second // the least time between two rounds, in which all nodes are asked
	roundShare   = 4                // a pause is at least so many times as long as the round before it, because ssh and kubectl cost
	fleetHistory = 24 * time.Hour
	unwatched    = time.Minute // after which no browser asks
	maxNodePages = 8
)

// A fleet shows the nodes of a cluster to browsers, and the page of each.
type fleet struct {
	cfg    FleetConfig
	looked atomic.Int64  // when a browser asked last, in Unix nanoseconds
	look   chan struct{} // gets a value when a browser asks

	mu      sync.Mutex
	version int // of nodes: counts what changes
	problem string
	nodes   []fleetNode
	address map[string]string
	pages   map[string]*nodePage
}

// fleetNode is a node as the page has it. Its JSON is for the page.
type fleetNode struct {
	Name     string        `json:"name"`
	Error    string        `json:"error,omitempty"`    // why it has not answered
	Asked    bool          `json:"asked"`              // it has been asked
	ClockOff int64         `json:"clockOff,omitempty"` // milliseconds by which the times of the report are late
	Report   *admin.Report `json:"report,omitempty"`   // only what the page shows; nil if it has not answered
}

// nodePage is the page of a node while a browser shows it.
type nodePage struct {
	server  *server
	handler http.Handler
	used    time.Time
	stop    func()
}

// NewFleet returns a site, at l, that shows the nodes of a cluster.
func NewFleet(cfg FleetConfig, l net.Listener) *Site {
	f := &fleet{cfg: cfg, look: make(chan struct{}, 1), pages: map[string]*nodePage{}}
	return newSite(l, f.handler, f.run)
}

// handler answers browsers that the guard has let in. The pages of nodes end with ctx.
func (f *fleet) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	html, policy := fleetPage()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { sendPage(w, html, policy) })
	mux.HandleFunc("GET /nodes", f.answer)
	mux.HandleFunc("GET /node/{name}/", func(w http.ResponseWriter, r *http.Request) { f.node(ctx, w, r) })
	return mux
}

// run asks all nodes, again and again, while a browser shows them.
func (f *fleet) run(ctx context.Context) {
	defer f.closePages(func(*nodePage) bool { return true })
	for ctx.Err() == nil {
		began := time.Now()
		f.round(ctx)
		f.closePages(func(p *nodePage) bool { return p.server.browsers.Load() == 0 && time.Since(p.used) > unwatched })
		pause := time.NewTimer(max(roundEvery, roundShare*time.Since(began)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
		for ctx.Err() == nil && time.Since(time.Unix(0, f.looked.Load())) > unwatched {
			select {
			case <-f.look:
			case <-time.After(unwatched): // closes the pages of nodes
				f.closePages(func(p *nodePage) bool { return p.server.browsers.Load() == 0 })
			case <-ctx.Done():
			}
		}
	}
}

// round asks all nodes once.
func (f *fleet) round(ctx context.Context) {
	nodes, err := f.cfg.List(ctx)
	if ctx.Err() != nil {
		return
	}
	f.list(nodes, err)
	if err != nil {
		return
	}
	for i, n := range admin.EachNode(ctx, nodes, f.cfg.Timeout, nil, func(ctx context.Context, i int) error {
		r, off, err := f.cfg.Ask(ctx, nodes[i])
		if err == nil {
			f.answered(i, nodeOf(nodes[i].Name, r, off))
		}
		return err
	}) {
		if n.Err != nil && ctx.Err() == nil {
			f.answered(i, fleetNode{Name: n.Name, Asked: true, Error: n.Err.Error()})
		}
	}
}

// answered takes what the page shows of a node now.
func (f *fleet) answered(i int, n fleetNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !reflect.DeepEqual(f.nodes[i], n) {
		f.nodes[i] = n
		f.version++
	}
}

// list takes the nodes that there are now, or why they are unknown.
func (f *fleet) list(nodes []admin.Node, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != f.problem {
		f.problem = problem
		f.version++
	}
	if err != nil {
		return
	}
	known := map[string]fleetNode{}
	for _, n := range f.nodes {
		known[n.Name] = n
	}
	before := f.nodes
	f.nodes, f.address = nil, map[string]string{}
	for _, n := range nodes {
		one := known[n.Name]
		one.Name = n.Name
		if n.Err != nil {
			one = fleetNode{Name: n.Name, Error: n.Err.Error(), Asked: true}
		} else {
			f.address[n.Name] = n.Address
		}
		f.nodes = append(f.nodes, one)
	}
	if !reflect.DeepEqual(before, f.nodes) {
		f.version++
	}
}

// nodeOf returns what the page shows of an answer.
func nodeOf(name string, r *admin.Report, off time.Duration) fleetNode {
	n := fleetNode{Name: name, Asked: true, ClockOff: off.Milliseconds()}
	n.Report = &admin.Report{Ready: r.Ready, Version: r.Version, Config: admin.Config{ID: r.Config.ID, Loaded: r.Config.Loaded, Error: r.Config.Error}}
	for _, b := range r.Backends {
		old := func(o admin.Outage) bool { return !o.To.IsZero() && time.Since(o.To.Add(-off)) >= fleetHistory }
		n.Report.Backends = append(n.Report.Backends, admin.Backend{Name: b.Name, State: b.State, Since: b.Since, Error: b.Error, Pods: b.Pods,
			Outages: slices.DeleteFunc(slices.Clone(b.Outages), old)})
	}
	return n
}

// answer sends all nodes, unless the browser has them.
func (f *fleet) answer(w http.ResponseWriter, r *http.Request) {
	f.looked.Store(time.Now().UnixNano())
	select {
	case f.look <- struct{}{}:
	default:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.FormValue("after") == strconv.Itoa(f.version) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(marshal(struct {
		Version  int         `json:"version"`
		Problem  string      `json:"problem,omitempty"`
		Fragment string      `json:"fragment,omitempty"`
		Nodes    []fleetNode `json:"nodes"`
	}{f.version, f.problem, f.cfg.Fragment, f.nodes})) // fails when the browser has gone
}

// node answers for the page of a node.
func (f *fleet) node(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	f.mu.Lock()
	p := f.pages[name]
	if p == nil {
		address, known := f.address[name]
		if !known || len(f.pages) >= maxNodePages {
			f.mu.Unlock()
			http.Error(w, "either there is no such node, or the pages of too many nodes are open; close some, and wait for two minutes", http.StatusNotFound)
			return
		}
		cfg := f.cfg.Page()
		cfg.Admin = address
		s := newServer(cfg, name)
		p = &nodePage{server: s, handler: s.handler(), stop: background(ctx, s.run)}
		f.pages[name] = p
	}
	p.used = time.Now()
	f.mu.Unlock()
	r = r.Clone(r.Context())
	r.URL.Path = "/" + r.URL.Path[len("/node/")+len(name)+1:]
	r.URL.RawPath = ""
	p.handler.ServeHTTP(w, r)
}

// closePages closes the pages of nodes for which which is true.
func (f *fleet) closePages(which func(*nodePage) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.pages {
		if which(p) {
			delete(f.pages, name)
			p.stop()
		}
	}
}
