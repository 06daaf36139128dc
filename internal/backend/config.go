package backend

import (
	"context"
	"time"

	"github.com/criproxy/criproxy/codec"
	"github.com/criproxy/criproxy/internal/base/recovery"
	"github.com/criproxy/criproxy/internal/inventory"
)

// A Policy says what a backend that is gone means for lists.
type Policy string

// The policies.
const (
	// LastKnown keeps the backend's items, and answers its status calls.
	LastKnown Policy = "last-known"
	// Fail fails every list, of all backends.
	Fail Policy = "fail"
	// Skip leaves the backend's items out, as the original CRI Proxy did. A
	// client takes them for gone.
	Skip Policy = "skip"
)

// The defaults of a [Config].
const (
	DefaultBudget   = 2 * time.Second
	DefaultSilence  = 10 * time.Second
	DefaultInterval = time.Second
	DefaultMaxBytes = 64 << 20
)

// HeaderKey is the key of the header that marks an answer from the cache. Its value
// is the backend's name.
const HeaderKey = "criproxy-last-known"

// HealthCheck is the method that a backend without Alive and without gates is asked. Each gRPC server answers it: one that
// does not know it with Unimplemented.
const HealthCheck = "/grpc.health.v1.Health/Check"

// Config configures a [Link], which does not change it. Several goroutines may call its functions at once, except Watch. Only
// Watch may call the Backend: the others may be called with its lock held.
type Config struct {
	Name string       // of the backend, for errors
	Next codec.Caller // the connection to the backend

	Schema  *codec.Schema
	Package string // of the methods that Spec names
	Spec    inventory.Spec

	// Pass says that every call passes, and that nothing is cached: see [Link.Reached]. Schema, Package and Spec do not matter.
	Pass bool

	// Equivalents returns all names under which an item with this name may be listed, the name itself included. Optional.
	Equivalents func(name string) []string

	Policy Policy // what lists do while the backend is gone; empty means LastKnown

	// Primary marks the backend without which there is no node. It is never left out of a list, and the cache never answers a
	// Reply that is Live in its place.
	Primary bool

	// Absent reports whether no process listens at the backend's address now. If in addition the backend has not been seen
	// since the machine was booted, that is evidence that it has no items, and lists leave it out. Nil means that there is
	// no such evidence.
	Absent func(context.Context) bool

	// Required makes lists wait for a backend even if it is absent, for at most Silence, and then fail.
	Required bool

	Budget   time.Duration // how long an answer may take before the cache answers in its place; zero means DefaultBudget
	Silence  time.Duration // how long a backend may answer nothing at all before it is gone; zero means DefaultSilence
	Interval time.Duration // how often Run asks a backend that no client asks; zero means DefaultInterval

	// Alive is the full name of a unary method that a backend answers quickly even when it is busy. Its answer distinguishes
	// a slow backend from one that is gone. Optional: without it the lists that are gates decide, and if there are none, any
	// answer to HealthCheck.
	Alive string

	MaxBytes int // bounds the cache; zero means DefaultMaxBytes

	// Watch is called by Run for each change of state, one after another. A Watch that blocks delays only the next call of
	// Watch. Optional.
	Watch func(State)

	// Before is the state that an earlier process had last. A backend that was gone begins as gone, since then. The time of any
	// other condition that goes on is for Watch to know. Optional.
	Before State

	// CacheHit is called for each answer from the cache, with the context of its call and the method's full name. It must
	// return at once. Optional.
	CacheHit func(ctx context.Context, method string)

	// Reserve reserves n bytes for a list that the cache gives to the call of ctx; Streamed, for a message of a list that the
	// backend streams, which stays in memory until the list is complete. They must not wait. If they fail, so does the call.
	// Nil means that there is always room.
	Reserve, Streamed func(ctx context.Context, n int) error

	Panicked recovery.Hook // called for each panic in the background; optional
}
