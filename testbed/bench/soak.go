package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/proxy"
)

const (
	soakPods       = 110
	soakContainers = 250
)

// A soak is a run of criproxy under a kubelet's calls.
type soak struct {
	harness
	long  time.Duration
	speed float64
	out   string

	client *runtimeClient
	ctrs   []string

	mu     sync.Mutex
	took   []time.Duration // since the last sample
	calls  int
	errors int
	last   error
	rows   []soakRow
}

// A soakRow holds the measurements of a part of a run.
type soakRow struct {
	at         time.Duration
	calls      int // of this part only, like the next field
	errors     int
	p50, p99   time.Duration
	cpu        time.Duration // of criproxy since its start, like the fields below
	rss        int64
	goroutines int
	files      int
}

type runtimeClient struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	cc *grpc.ClientConn
}

// kubeletMix is the rate of each call of a kubelet with 100 idle pods, in calls per second, as this program has counted
// them with kubelet v1.36.3.
var kubeletMix = map[string]float64{
	"ContainerStatus":    10.00,
	"Version":            7.62,
	"ListContainers":     1.65,
	"ListPodSandbox":     1.53,
	"Status":             0.20,
	"ListContainerStats": 0.10,
	"ImageFsInfo":        0.10,
	"ListImages":         0.03,
}

func runSoak(ctx context.Context, args []string, out, progress io.Writer) error {
	s := &soak{harness: harness{progress: progress}}
	fs := flag.NewFlagSet("bench soak", flag.ContinueOnError)
	fs.DurationVar(&s.long, "for", 10*time.Minute, "how long")
	fs.Float64Var(&s.speed, "speed", 1, "make calls this many times as often as a kubelet")
	fs.StringVar(&s.out, "out", "", "the Markdown file between whose marks the table goes; its plot goes beside it")
	fs.StringVar(&s.criproxy, "criproxy", "", "the criproxy to run; built from this checkout if empty")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || s.long < time.Second || s.speed <= 0 {
		return fmt.Errorf("soak: want only flags, at least one second, and a speed above 0; got %q", args)
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "soak"); err != nil { // short, for sockets
		return err
	}
	defer os.RemoveAll(s.dir)
	if err := s.findCriproxy(ctx); err != nil {
		return err
	}
	p, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := s.fill(ctx); err != nil {
		return err
	}
	if err := s.work(ctx, p); err != nil {
		return err
	}
	if err := s.write(out); err != nil {
		return err
	}
	if s.last != nil {
		return fmt.Errorf("%d calls failed, the last with: %w", s.failed(), s.last)
	}
	return nil
}

// start runs criproxy in front of two runtimes.
func (s *soak) start(ctx context.Context) (*running, error) {
	var sockets []string
	for i := range 2 {
		socket := filepath.Join(s.dir, fmt.Sprint("b", i))
		if _, err := start(ctx, contender{name: "a runtime in memory"}, exec.Command(os.Args[0], "fake", "-socket", socket), socket); err != nil {
			return nil, err
		}
		sockets = append(sockets, socket)
	}
	p, err := s.startContender(ctx, called(two), "", sockets)
	if err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient("unix:"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		p.stop()
		return nil, err
	}
	s.client = &runtimeClient{runtimeapi.NewRuntimeServiceClient(cc), runtimeapi.NewImageServiceClient(cc), cc}
	return p, nil
}

const soakImage = "registry.example.org/web:v1"

func podConfig(i int) *runtimeapi.PodSandboxConfig {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("web-", i), Namespace: "production", Uid: fmt.Sprint("uid-", i)},
		Labels:   map[string]string{"io.kubernetes.pod.name": fmt.Sprint("web-", i), "io.kubernetes.pod.namespace": "production", "io.kubernetes.pod.uid": fmt.Sprint("uid-", i)},
	}
	if i%2 == 1 {
		config.Annotations = map[string]string{"kubernetes.io/target-runtime": "two.test"}
	}
	return config
}

// fill makes the pods of a node, half of them on each runtime.
func (s *soak) fill(ctx context.Context) error {
	for i := range soakPods {
		_, ctrs, err := s.make(ctx, i, 2+(i+1)*(soakContainers-2*soakPods)/soakPods-i*(soakContainers-2*soakPods)/soakPods)
		if err != nil {
			return err
		}
		s.ctrs = append(s.ctrs, ctrs...)
	}
	if len(s.ctrs) != soakContainers {
		return fmt.Errorf("made %d containers, want %d", len(s.ctrs), soakContainers)
	}
	return nil
}

// make creates a pod with containers, as a kubelet does.
func (s *soak) make(ctx context.Context, i, containers int) (string, []string, error) {
	config := podConfig(i)
	pod, err := s.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", nil, err
	}
	pulled, err := s.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: soakImage}, SandboxConfig: config})
	if err != nil {
		return "", nil, err
	}
	var ctrs []string
	for j := range containers {
		c, err := s.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprint("c", j)}, Image: &runtimeapi.ImageSpec{Image: pulled.ImageRef}}})
		if err == nil {
			_, err = s.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId})
		}
		if err != nil {
			return "", nil, err
		}
		ctrs = append(ctrs, c.ContainerId)
	}
	return pod.PodSandboxId, ctrs, nil
}

// churn creates a pod and removes it.
func (s *soak) churn(ctx context.Context) error {
	pod, ctrs, err := s.make(ctx, soakPods+rand.IntN(1<<30), 2)
	if err != nil {
		return err
	}
	for _, c := range ctrs {
		_, err1 := s.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c, Timeout: 1})
		_, err2 := s.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c})
		err = errors.Join(err, err1, err2)
	}
	_, err1 := s.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	_, err2 := s.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	return errors.Join(err, err1, err2)
}

// call makes one call of a method of the mix, about a random container, and checks the reply.
func (s *soak) call(ctx context.Context, method string) error {
	ctr := s.ctrs[rand.IntN(len(s.ctrs))]
	full := "/runtime.v1.RuntimeService/" + method
	var request, reply proto.Message
	complete := func() bool { return true }
	switch method {
	case "Version":
		request, reply = &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{}
	case "Status":
		request, reply = &runtimeapi.StatusRequest{}, &runtimeapi.StatusResponse{}
	case "ListPodSandbox":
		r := &runtimeapi.ListPodSandboxResponse{}
		request, reply, complete = &runtimeapi.ListPodSandboxRequest{}, r, func() bool { return len(r.Items) >= soakPods }
	case "ListContainers":
		r := &runtimeapi.ListContainersResponse{}
		request, reply, complete = &runtimeapi.ListContainersRequest{}, r, func() bool { return len(r.Containers) >= soakContainers }
	case "ListContainerStats":
		r := &runtimeapi.ListContainerStatsResponse{}
		request, reply, complete = &runtimeapi.ListContainerStatsRequest{}, r, func() bool { return len(r.Stats) >= soakContainers }
	case "ContainerStatus":
		r := &runtimeapi.ContainerStatusResponse{}
		request, reply, complete = &runtimeapi.ContainerStatusRequest{ContainerId: ctr}, r, func() bool { return r.GetStatus().GetId() == ctr }
	case "ListImages":
		full = "/runtime.v1.ImageService/" + method
		request, reply = &runtimeapi.ListImagesRequest{}, &runtimeapi.ListImagesResponse{}
	case "ImageFsInfo":
		full = "/runtime.v1.ImageService/" + method
		request, reply = &runtimeapi.ImageFsInfoRequest{}, &runtimeapi.ImageFsInfoResponse{}
	default:
		return fmt.Errorf("soak: there is no request for %s, which is in the mix", method)
	}
	if err := s.client.cc.Invoke(ctx, full, request, reply); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	if !complete() {
		return fmt.Errorf("%s: the reply is incomplete", method)
	}
	return nil
}

// work makes calls until the run ends.
func (s *soak) work(ctx context.Context, p *running) error {
	ctx, cancel := context.WithTimeout(ctx, s.long)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	every := func(a float64, do func(context.Context) error) {
		wg.Go(func() {
			ticker := time.NewTicker(max(time.Duration(float64(time.Second)/(a*s.speed)), 100*time.Microsecond))
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				// Finish what has begun, even if the run has ended.
				once, stop := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				start := time.Now()
				err := do(once)
				stop()
				s.note(time.Since(start), err)
			}
		})
	}
	for method, a := range kubeletMix {
		for range max(1, int(a*s.speed/50)) { // a single goroutine is not fast enough
			every(a/float64(max(1, int(a*s.speed/50))), func(ctx context.Context) error { return s.call(ctx, method) })
		}
	}
	every(0.1, s.churn)
	for range 20 {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(time.Duration(len(s.rows)+1) * s.long / 20))):
		}
		if err := s.sample(p, time.Since(began)); err != nil {
			return err
		}
	}
	cancel()
	wg.Wait()
	return nil
}

func (s *soak) note(took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, took)
	s.calls++
	if err != nil {
		s.errors++
		s.last = err
	}
}

func (s *soak) failed() (n int) {
	for _, r := range s.rows {
		n += r.errors
	}
	return n
}

// sample measures criproxy.
func (s *soak) sample(p *running, at time.Duration) error {
	s.mu.Lock()
	took, r := s.took, soakRow{at: at, calls: s.calls, errors: s.errors}
	s.took, s.calls, s.errors = nil, 0, 0
	s.mu.Unlock()
	slices.Sort(took)
	t := turn{took: took}
	r.p50, r.p99 = t.quantile(0.5), t.quantile(0.99)
	pid := p.cmd.Process.Pid
	u, err := usageOf(pid)
	if err != nil {
		return fmt.Errorf("criproxy has ended: %w\n%s", err, p.said.String())
	}
	r.cpu = u.cpu
	m, _ := memoryOf(pid)
	r.rss = m.now
	r.files = host.OpenFiles(pid)
	all, err := proxy.Metrics(context.Background(), proxy.AdminOf(p.socket))
	if err != nil {
		return err
	}
	n, ok := all["go_goroutines"]
	if !ok {
		return errors.New("criproxy has no metric go_goroutines")
	}
	r.goroutines = int(n)
	s.rows = append(s.rows, r)
	fmt.Fprintf(s.progress, "%8s  %d calls, %d errors, p99 %s, %.1f MiB, %d goroutines, %d files\n", at.Round(time.Second), r.calls, r.errors, short(r.p99), float64(r.rss)/(1<<20), r.goroutines, r.files)
	return nil
}
