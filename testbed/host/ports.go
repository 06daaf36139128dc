package host

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// These ports are below the range of ephemeral ports, so that no outgoing connection takes a daemon's port while the
// daemon is away.
const firstPort, lastPort = 20000, 32000

// takenPorts are the ports that FreePorts has returned.
var takenPorts struct {
	sync.Mutex
	all map[int]bool
}

// FreePorts returns n ports on 127.0.0.1 that have no listener and that it has not returned before.
func FreePorts(n int) ([]int, error) {
	takenPorts.Lock()
	defer takenPorts.Unlock()
	if takenPorts.all == nil {
		takenPorts.all = map[int]bool{}
	}
	var free []int
	for try := 0; len(free) < n; try++ {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if takenPorts.all[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && try > 1000 {
			return nil, fmt.Errorf("testbed: finding free ports on 127.0.0.1: %w", err)
		}
		if err != nil {
			continue
		}
		listener.Close()
		takenPorts.all[port] = true
		free = append(free, port)
	}
	return free, nil
}
