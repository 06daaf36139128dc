package fakecri

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Runtime holds pods, containers and images. It is safe for concurrent use.
//
// It never changes a message that it has received or returned: an update replaces the message. So it
// can send lists without copying.
type Runtime struct {
	cfg    Config
	before atomic.Pointer[Fault] // before each call
	after  atomic.Pointer[Fault] // after each call that succeeded, and each message of a stream
	calls  callLog

	mu         sync.Mutex // guards the fields below
	random     *rand.Rand
	pods       table[pod]
	containers table[container]
	names      map[string]string // :: reserved name → id of its holder
	images     imageStore
	events     eventQueue
	checkpoint map[string][]string // :: path of a checkpoint → the names of its containers
	addresses  uint32
	podCIDR    string
	filled     int
}

// New returns an empty runtime.
func New(cfg Config) *Runtime {
	cfg = cfg.withDefaults()
	return &Runtime{
		cfg:        cfg,
		random:     rand.New(rand.NewPCG(cfg.Seed, cfg.Seed)),
		pods:       newTable[pod]("pod sandbox"),
		containers: newTable[container]("container"),
		names:      map[string]string{},
		images:     newImageStore(),
		events:     newEventQueue(),
		checkpoint: map[string][]string{},
	}
}

// newID returns 64 hex digits.
func (rt *Runtime) newID() string {
	var b [32]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rt.random.Uint64())
	}
	return hex.EncodeToString(b[:])
}

func (rt *Runtime) now() int64 { return time.Now().UnixNano() }

// reserve reserves a name for an id. If another id holds the name, reserve returns that as holder.
func (rt *Runtime) reserve(id string, parts ...string) (name string, holder string) {
	name = strings.Join(parts, "_")
	if holder, taken := rt.names[name]; taken {
		return name, holder
	}
	rt.names[name] = id
	return name, ""
}

// Pods returns all pod sandboxes as ListPodSandbox shows them, in order of creation. The caller owns
// the messages.
func (rt *Runtime) Pods() []*runtimeapi.PodSandbox { return clones(rt.listPods(nil)) }

// Containers returns all containers as ListContainers shows them, in order of creation. The caller
// owns the messages.
func (rt *Runtime) Containers() []*runtimeapi.Container { return clones(rt.listContainers(nil)) }

// Images returns all images in the order in which they were pulled. The caller owns the messages.
func (rt *Runtime) Images() []*runtimeapi.Image { return clones(rt.listImages()) }

// PodCIDR returns the pod CIDR of the latest UpdateRuntimeConfig.
func (rt *Runtime) PodCIDR() string {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.podCIDR
}

func clones[M proto.Message](messages []M) []M {
	messages = slices.Clone(messages)
	for i, m := range messages {
		messages[i] = proto.CloneOf(m)
	}
	return messages
}
