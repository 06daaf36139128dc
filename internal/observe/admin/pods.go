package admin

import (
	"errors"
	"time"
)

// ErrNoPods is why a criproxy does not answer with pods.
var ErrNoPods = errors.New("only CRI has pods, and this criproxy serves another API")

// Pods are the pods of all backends. Its JSON is stable.
type Pods struct {
	Pods   []Pod    `json:"pods"`             // by namespace and name
	Silent []Silent `json:"silent,omitempty"` // backends whose pods, or containers, are missing

	Unanswered []SilentNode `json:"unanswered,omitempty"` // nodes that did not answer, if several were asked
}

// Pod is a sandbox of a pod, with its containers. Its JSON is stable.
type Pod struct {
	Node       string      `json:"node,omitempty"` // if several were asked
	Name       string      `json:"name"`
	Namespace  string      `json:"namespace"`
	UID        string      `json:"uid,omitempty"`
	Backend    string      `json:"backend"` // "primary" if it has no name
	State      string      `json:"state"`   // "ready" or "notready"; "unknown" if only its containers are listed
	Created    time.Time   `json:"created,omitzero"`
	Handler    string      `json:"handler,omitempty"` // of the RuntimeClass, as the runtime calls it
	ID         string      `json:"id"`                // that clients see
	NativeID   string      `json:"nativeId"`          // that the runtime made
	FromCache  bool        `json:"fromMemory"`        // the backend did not answer: this is its last known state
	Containers []Container `json:"containers"`
}

// Container is a container of a pod. Its JSON is stable.
type Container struct {
	Name     string    `json:"name"`
	Attempt  uint32    `json:"attempt"`
	State    string    `json:"state"` // "created", "running", "exited", "unknown"
	Created  time.Time `json:"created,omitzero"`
	Image    string    `json:"image,omitempty"`
	ID       string    `json:"id"`
	NativeID string    `json:"nativeId"`
}

// Silent is a backend whose pods or containers could not be listed. Its JSON is stable.
type Silent struct {
	Node    string `json:"node,omitempty"` // if several were asked
	Backend string `json:"backend"`
	Error   string `json:"error"`
}

// SilentNode is a node that did not answer. Its JSON is stable.
type SilentNode struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}
