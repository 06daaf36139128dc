package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/config"
	"github.com/criproxy/criproxy/internal/testing/testkit"
)

func TestPolicyFailFailsListsAndPolicySkipLeavesOut(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil, machineConfig{},
		machineConfig{backend: config.Backend{Name: "fail.io", Policy: "fail"}},
		machineConfig{backend: config.Backend{Name: "skip.io", Policy: "skip"}})
	web := n.run(0, "web", 1)
	failed := n.run(1, "failed", 1)
	skipped := n.run(2, "skipped", 1)
	n.known()

	n.runtimes[2].Kill()
	n.isDown(2)
	for _, l := range []listing{listPods(nil), listPods(&runtimeapi.PodSandboxFilter{})} {
		pods, _ := l.both(n)
		assert.ElementsMatch(t, []string{web.sandbox, failed.sandbox}, idsOf(pods))
	}
	_, err := n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: skipped.sandbox})
	testkit.AssertCode(t, codes.Unavailable, err)

	n.runtimes[1].Kill()
	n.isDown(1)
	for _, l := range allListings() {
		_, err := l.unary(n)
		testkit.AssertCode(t, codes.Unavailable, err)
		assert.ErrorContains(t, err, "fail.io", l.name)
		_, err = l.streamed(n)
		testkit.AssertCode(t, codes.Unavailable, err)
	}
	_, err = n.PodSandboxStatus(n.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: failed.sandbox})
	testkit.AssertCode(t, codes.Unavailable, err)
	for what, err := range n.callsAbout(0, web) {
		assert.NoError(t, err, what)
	}

	n.runtimes[1].Start()
	n.runtimes[2].Start()
	n.isUp(1)
	n.isUp(2)
	n.lists(web.sandbox, failed.sandbox, skipped.sandbox)
}

// A runtime that is configured and not installed makes no call fail.
func TestARuntimeThatWasNeverSeenIsLeftOutAndSaidSo(t *testing.T) {
	t.Parallel()
	const name = "never.io"
	n := newNode(t, func(c *config.Config) { c.IDs = config.NativeIDs }, machineConfig{}, machineConfig{backend: config.Backend{Name: name}, absent: true})
	web := n.run(0, "web", 1)
	n.isDown(1)
	testkit.Eventually(t, "it is said", func() bool {
		return len(testkit.LogLines(name, "was not seen since this node booted")) == 1
	})
	report := n.proxy.Report(n.ctx()).Backends[1]
	assert.True(t, report.NeverSeen)
	assert.False(t, report.LastKnown)
	assert.Equal(t, []*int{nil, nil, nil}, []*int{report.Pods, report.Containers, report.Images}, "status had three zeros from the cache")
	for _, l := range allListings() {
		got, _ := l.both(n)
		assert.NotEmpty(t, got, l.name)
	}
	_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	assert.NoError(t, err)
	_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
	assert.NoError(t, err)
	_, err = n.ListMetricDescriptors(n.ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
	assert.NoError(t, err)
	for what, err := range n.callsAbout(0, web) {
		assert.NoError(t, err, what)
	}
	// kubelet asks for the status of each image before it pulls it, and for that of
	// the image of each container when it looks for its user.
	image, err := n.ImageStatus(n.ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "not-pulled-yet:1"}})
	require.NoError(t, err)
	assert.Nil(t, image.GetImage())

	n.runtimes[1].Start()
	n.isUp(1)
	db := n.run(1, "db", 1)
	n.lists(web.sandbox, db.sandbox)
	assert.Len(t, testkit.LogLines(name, "was not seen since"), 1)
}

// Package backend tests what a list waits for.
func TestOnlyListsNeedARequiredRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, impatient, machineConfig{}, machineConfig{backend: config.Backend{Name: "beta.io", Required: true}, absent: true})
	failed := make(chan error, 1)
	go func() {
		_, err := listPods(nil).unary(n)
		failed <- err
	}()
	_, err := n.Status(n.ctx(), &runtimeapi.StatusRequest{})
	assert.NoError(t, err, "kubelet starts all the same")
	_, err = n.ImageFsInfo(n.ctx(), &runtimeapi.ImageFsInfoRequest{})
	assert.NoError(t, err, "and asks for this when it does")
	_, err = n.RunPodSandbox(n.ctx(), &runtimeapi.RunPodSandboxRequest{Config: testkit.PodConfig("web")})
	assert.NoError(t, err)
	err = <-failed
	testkit.AssertCode(t, codes.Unavailable, err)
	assert.ErrorContains(t, err, "backend beta.io is required, has not been seen since this node was booted, and did not come within "+n.cfg.GoneAfter.String())
	n.runtimes[1].Fill(1)
	n.runtimes[1].Start()
	n.isUp(1)
	got, err := listPods(nil).unary(n)
	require.NoError(t, err)
	assert.Len(t, got, 2)
}
