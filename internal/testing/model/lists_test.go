package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

// inPeace runs a test with a client, in a world in which nothing happens by itself, and of which criproxy knows all. It fails
// if the oracle finds anything wrong.
func inPeace(t *testing.T, test func(t *testing.T, w *world, c *client, second *runtime)) {
	w := newWorld(t, 4)
	testkit.OnSimulatedClock(t, func(t *testing.T) {
		w.begins(time.Hour)
		defer w.ends()
		c := w.client(0)
		w.sleep(30 * time.Second)
		test(t, w, c, w.runtimes[1])
	})
	require.Empty(t, w.wrong)
}

// A list of all runtimes took 10 seconds after a container of one that hangs had been stopped.
func TestAConfirmedStopDelaysNoList(t *testing.T) {
	inPeace(t, func(t *testing.T, w *world, c *client, second *runtime) {
		c.list(containers, false, filter{}, long)
		for _, i := range second.items[containers] { // all of them run
			front := w.now.cfg.front(1, i.id)
			_, one := c.change("StopContainer", front, &runtimeapi.StopContainerRequest{ContainerId: front}, long)
			require.NoError(t, one.err)
			break
		}
		hung := clear()
		hung.name, hung.frozen = "frozen", true
		second.turns(hung, second.address())
		for range 3 {
			began := time.Now()
			items := c.list(containers, false, filter{}, long)
			require.NotNil(t, items)
			assert.LessOrEqual(t, time.Since(began), backend.DefaultBudget+slack)
			stopped := 0
			for _, one := range items {
				if one.state == int(exited) {
					stopped++
				}
			}
			assert.Equal(t, 1, stopped, "the stopped container is listed as such")
			w.sleep(time.Second)
		}
	})
}

// A list showed that a container ran before the client had its answer. Then lists waited for a list that shows what it did.
func TestAStartThatIsListedEarlyDelaysNoList(t *testing.T) {
	inPeace(t, func(t *testing.T, w *world, c *client, second *runtime) {
		pod := w.now.cfg.front(1, second.items[sandboxes][0].id)
		reply, one := c.change("CreateContainer", pod, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: &runtimeapi.ContainerConfig{Annotations: map[string]string{"version": "0"}}}, long)
		require.NoError(t, one.err)
		front := decode(reply, &runtimeapi.CreateContainerResponse{}).ContainerId
		late := clear()
		late.name, late.latency[rest] = "slow writes", latency{20 * time.Second, 20 * time.Second}
		second.turns(late, second.address())
		started := make(chan struct{})
		w.group.Go(func() {
			defer close(started)
			_, one := c.change("StartContainer", front, &runtimeapi.StartContainerRequest{ContainerId: front}, long)
			assert.NoError(t, one.err)
		})
		for c.list(containers, false, filter{}, long)[front].state != int(running) {
			w.sleep(time.Second)
		}
		select {
		case <-started:
			t.Fatal("the client was told before the list was")
		default:
		}
		late.latency[lists] = latency{time.Minute, time.Minute}
		second.turns(late, second.address())
		<-started
		for range 3 {
			began := time.Now()
			require.Equal(t, int(running), c.list(containers, false, filter{}, long)[front].state)
			assert.LessOrEqual(t, time.Since(began), backend.DefaultBudget+slack)
		}
	})
}

// A filtered list that was answered late put a container back as it was, after the answer to a later request had shown that it
// has ended.
func TestALateFilteredListUndoesNoLaterOne(t *testing.T) {
	inPeace(t, func(t *testing.T, w *world, c *client, second *runtime) {
		other := w.client(1)
		late, hung := clear(), clear()
		late.name, late.latency[lists] = "slow lists", latency{100 * time.Millisecond, 1900 * time.Millisecond}
		hung.name, hung.frozen = "frozen", true
		for range 40 { // in a few of them the earlier request is answered later, and as of before the end
			w.mu.Lock()
			one := second.add(containers, second.items[sandboxes][0].id, running)
			w.mu.Unlock()
			w.sleep(20 * time.Second)
			front, pod := w.now.cfg.front(1, one.id), filter{pod: w.now.cfg.front(1, one.pod)}
			second.turns(late, second.address())
			answered := make(chan struct{})
			w.group.Go(func() {
				defer close(answered)
				other.list(containers, false, pod, long)
			})
			w.sleep(500 * time.Millisecond)
			w.mu.Lock()
			second.changes[containers] = append(second.changes[containers], &change{from: time.Now(), to: time.Now()})
			second.become(one, exited)
			w.mu.Unlock()
			require.Equal(t, int(exited), c.list(containers, false, pod, long)[front].state)
			<-answered
			second.turns(hung, second.address())
			c.list(containers, false, filter{}, long)
			require.Empty(t, w.wrong)
			second.turns(clear(), second.address())
		}
	})
}
