package server

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
	"github.com/criproxy/criproxy/internal/transport"
)

// circle starts two proxies, each of which is a backend of the other one: the only one, or one beside a runtime.
func circle(t *testing.T, path string, runtimes [2]bool) [2]*node {
	there := filepath.Join(testkit.SocketDir(t), "there.sock")
	start := func(behind string, runtime bool, change func(*config.Config)) *node {
		return newNode(t, func(c *config.Config) {
			c.DataPath = path
			change(c)
			if runtime {
				c.Backends = append(c.Backends, config.Backend{Name: "other.io", Address: behind})
			} else {
				c.Backends = []config.Backend{{Address: behind}}
			}
		}, machineConfig{absent: !runtime})
	}
	here := start(there, runtimes[0], func(*config.Config) {})
	return [2]*node{here, start(here.cfg.Listen, runtimes[1], func(c *config.Config) { c.Listen = there })}
}

func TestACallThatComesBackIsRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{config.OwnPath, config.GRPCPath} {
		for name, runtime := range map[string]bool{"its only backend": false, "a backend beside a runtime": true} {
			t.Run(path+"/"+name, func(t *testing.T) {
				t.Parallel()
				both := circle(t, path, [2]bool{runtime, runtime})
				for _, n := range both {
					ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/2)
					defer cancel()
					var err error
					testkit.Eventually(t, "it is connected", func() bool {
						_, err = n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
						return !strings.Contains(status.Convert(err).Message(), "cannot be reached")
					})
					require.ErrorContains(t, err, " came back to the criproxy that passed it on, through "+n.cfg.Listen)

					ctx = metadata.AppendToOutgoingContext(ctx, transport.ViaField, "another,"+n.proxy.via)
					_, err = n.Version(ctx, &runtimeapi.VersionRequest{})
					testkit.AssertCode(t, codes.FailedPrecondition, err)
					s, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
					require.NoError(t, err)
					_, err = s.Recv()
					testkit.AssertCode(t, codes.FailedPrecondition, err)
					assert.ErrorContains(t, err, "GetContainerEvents came back")
				}
				recorded := func() (events uint64) {
					for _, n := range both {
						events += n.proxy.Recording().State().Recorded
					}
					return events
				}
				since, before := time.Now(), recorded() // in this order a busy machine makes fewer events a second, not more
				time.Sleep(time.Second)                 // without a client
				assert.Less(t, float64(recorded()-before)/time.Since(since).Seconds(), 300.0, "events a second; a call has two to six")
			})
		}
	}
}

// The lists of both waited for as long as a runtime may take to start.
func TestListsDoNotWaitForABackendThatLeadsBack(t *testing.T) {
	t.Parallel()
	both := circle(t, config.OwnPath, [2]bool{true, false})
	testkit.Eventually(t, "it is gone because its calls come back", func() bool {
		s := both[0].proxy.backends()[1].backend.State()
		return s.Condition == backend.Gone && strings.Contains(s.Err.Error(), "came back")
	})
	const why = "backend other.io answers /runtime.v1.RuntimeService/Version with FailedPrecondition: criproxy: Version came back to the criproxy that passed it on"
	for _, n := range both {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/2) // sooner than such a list would wait for a runtime that starts
		defer cancel()
		_, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		testkit.AssertCode(t, codes.Unavailable, err)
		assert.ErrorContains(t, err, why)
	}
	r := both[1].proxy.Report(t.Context())
	assert.Equal(t, backend.Up.String(), r.Backends[0].State)
	assert.Regexp(t, `^is connected, but \w+ fails: `+why, r.Backends[0].Error)
	assert.Equal(t, "calls to primary fail", r.Wrong())
}
