package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/internal/observe/admin"
	"github.com/criproxy/criproxy/internal/observe/capture"
	"github.com/criproxy/criproxy/testbed"
)

// A recording is the calls of a real kubelet with pods on two real containerds, each leg with all messages.
type recording struct {
	harness
	pods int
	long time.Duration
	file string // FILE.jsonl or another format, and .gz to compress it
}

// Every probed-th pod of a recording has an exec probe, with the period that Kubernetes gives by default.
const probed = 10

// scrape is how often a recorded kubelet is asked for its metrics, as metrics-server asks.
const scrape = 15 * time.Second

// runRecord records, or prints the figures of a file that it has recorded.
func runRecord(ctx context.Context, args []string, out, progress io.Writer) error {
	r := &recording{harness: harness{progress: progress}}
	fs := flag.NewFlagSet("bench record", flag.ContinueOnError)
	fs.IntVar(&r.pods, "pods", nodePods, "how many pods there are, half of them on each runtime")
	fs.DurationVar(&r.long, "for", 10*time.Minute, "how long to record when all pods run")
	fs.StringVar(&r.file, "out", "", "the new file: .jsonl, .pcapng or .binlog, with .gz to compress it")
	show := fs.String("show", "", "record nothing, and print the figures of this `FILE`")
	fs.StringVar(&r.criproxy, "criproxy", "", "the criproxy to run; built from this checkout if empty")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || r.pods < 1 || r.long < time.Second || (r.file == "") == (*show == "") {
		return fmt.Errorf("record: want -out or -show, at least one pod and one second, and no arguments; got %q", args)
	}
	if *show != "" {
		return showRecording(*show, out)
	}
	if reasons := testbed.Requirements(); len(reasons) > 0 {
		return fmt.Errorf("record: this machine cannot run a kubelet: %w", errors.Join(reasons...))
	}
	var err error
	if r.dir, err = os.MkdirTemp("", "record"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	if err := r.findCriproxy(ctx); err != nil {
		return err
	}
	if err := r.record(ctx); err != nil {
		return err
	}
	return showRecording(r.file, out)
}

func (r *recording) record(ctx context.Context) (err error) {
	format, err := capture.FormatOf(strings.TrimSuffix(r.file, ".gz"))
	if err != nil {
		return err
	}
	// All of a large node's lists fit until they are read; secrets are the testbed's, and the file holds what was sent.
	n, err := r.startNode(ctx, []string{"1.7", "2.4"}, "-flight-recorder", strconv.Itoa(256<<20), "-unsafe-raw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.destroy(ctx)) }()
	fmt.Fprintf(r.progress, "starting %d pods\n", r.pods)
	if err := n.run(ctx, r.pods, usualPod); err != nil {
		return err
	}
	fmt.Fprintln(r.progress, "all of them run; waiting until the kubelet has settled")
	if err := pause(ctx, nodeSettles); err != nil {
		return err
	}
	fmt.Fprintf(r.progress, "recording for %v\n", r.long)
	began := time.Now()
	recorded, stop := context.WithTimeout(ctx, r.long)
	defer stop()
	go func() {
		for pause(recorded, scrape) == nil {
			_, _ = n.kubelet.Page(recorded, "/metrics/resource") // only the calls that it makes are of interest
		}
	}()
	response, err := admin.NewClient(n.front.Admin()).Get(recorded, "/events?follow=true")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	reader, err := capture.NewReader(response.Body)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(r.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var w io.WriteCloser = file
	if strings.HasSuffix(r.file, ".gz") {
		w = gzip.NewWriter(file)
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return capture.WriteTo(w, format, reader.Header(), criadapter.Schema(), func(ev *capture.Event) error {
		for {
			err := reader.Next(ev)
			switch {
			case recorded.Err() != nil && ctx.Err() == nil:
				return io.EOF
			case err != nil:
				return err
			case ev.Time.After(began):
				return nil
			}
		}
	})
}

// usualPod makes a pod more like those of a cluster: of the second runtime if i is odd, with labels, a volume, a variable,
// a port and limits, and sometimes a probe.
func usualPod(i int, pod *corev1.Pod) {
	if i%2 == 1 {
		pod.Annotations["kubernetes.io/target-runtime"] = secondOfNode
	}
	pod.Labels = map[string]string{
		"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": pod.Name, "app.kubernetes.io/managed-by": "testbed",
		"pod-template-hash": fmt.Sprintf("%010x", 7919*(i+1)),
	}
	pod.Annotations["example.org/scrape"] = "true"
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	c := &pod.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}}
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: int32(20000 + i)}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/web"}}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("16Mi")}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}
	if i%probed == 0 {
		c.LivenessProbe = &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"app", "exit", "0"}}},
			TimeoutSeconds:   15, // a busy machine fails no probe
			FailureThreshold: 10,
		}
	}
}

// A tally counts the replies of one method on one side of criproxy.
type tally struct {
	calls, bytes   int
	equal, content int // replies equal to the one before to the same request: in their bytes, and apart from order
}

// showRecording prints the figures of a recording.
func showRecording(path string, out io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var in io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(file); err != nil {
			return err
		}
	}
	reader, err := capture.NewReader(in)
	if err != nil {
		return err
	}
	type leg struct {
		call uint64
		leg  int
	}
	type reply struct{ bytes, content uint64 }
	var (
		seed        = maphash.MakeSeed()
		requests    = map[leg]uint64{}
		last        = map[uint64]reply{} // :: hash of backend, method and request → what was replied last
		tallies     = map[string]*tally{}
		first, end  time.Duration
		missed, cut uint64
		sizes       [2]int // of messages: the clients' legs, and the runtimes'
		key         bytes.Buffer
	)
	for n := 0; ; n++ {
		var ev capture.Event
		if err := reader.Next(&ev); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		} else if err != nil {
			return err
		}
		if ev.Kind == capture.Missed {
			missed += ev.Missed
			continue
		}
		if n == 0 {
			first = ev.Mono
		}
		end = max(end, ev.Mono)
		if ev.Truncated {
			cut++
		}
		sizes[min(ev.Leg, 1)] += ev.Size
		at := leg{ev.Call, ev.Leg}
		switch ev.Kind {
		case capture.Request:
			key.Reset()
			fmt.Fprintf(&key, "%s %d %s ", ev.Backend, min(ev.Leg, 1), ev.Method)
			key.Write(ev.Payload)
			requests[at] = maphash.Bytes(seed, key.Bytes())
		case capture.Reply:
			name := ev.Method[strings.LastIndexByte(ev.Method, '/')+1:] + map[bool]string{true: ", client", false: ", runtimes"}[ev.Leg == 0]
			t := tallies[name]
			if t == nil {
				t = &tally{}
				tallies[name] = t
			}
			t.calls++
			t.bytes += ev.Size
			now := reply{maphash.Bytes(seed, ev.Payload), maphash.Bytes(seed, ordered(ev.Method, ev.Payload))}
			if before, ok := last[requests[at]]; ok && requests[at] != 0 {
				t.equal += count(before.bytes == now.bytes)
				t.content += count(before.content == now.content)
			}
			last[requests[at]] = now
		case capture.End:
			delete(requests, at)
		}
	}
	seconds := (end - first).Seconds()
	var names []string
	all := map[bool]*tally{true: {}, false: {}} // :: of clients → sum
	for name, t := range tallies {
		names = append(names, name)
		sum := all[strings.HasSuffix(name, "client")]
		sum.calls, sum.bytes, sum.equal, sum.content = sum.calls+t.calls, sum.bytes+t.bytes, sum.equal+t.equal, sum.content+t.content
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(tallies[b].bytes, tallies[a].bytes), cmp.Compare(a, b))
	})
	fmt.Fprintf(out, "%.0f s; messages a second: clients %.0f bytes, runtimes %.0f bytes; %d events missing, %d messages cut\n\n", seconds, float64(sizes[0])/seconds, float64(sizes[1])/seconds, missed, cut)
	fmt.Fprintf(out, "| replies | a second | bytes each | bytes a second | equal to the last | but for its order |\n| --- | --: | --: | --: | --: | --: |\n")
	row := func(name string, t *tally) {
		n := float64(max(t.calls, 1))
		fmt.Fprintf(out, "| %s | %.2f | %.0f | %.0f | %.0f%% | %.0f%% |\n", name, n/seconds, float64(t.bytes)/n, float64(t.bytes)/seconds, 100*float64(t.equal)/n, 100*float64(t.content)/n)
	}
	row("all to the client", all[true])
	row("all of the runtimes", all[false])
	for _, name := range names {
		row(name, tallies[name])
	}
	return nil
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// ordered returns a reply with the entries of maps and the items of its lists in order, because runtimes written in Go send
// them in a random one. It returns the reply unchanged if no schema knows the method.
func ordered(method string, payload []byte) []byte {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	m, ok := d.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return payload
	}
	message := dynamicpb.NewMessage(m.Output())
	if proto.Unmarshal(payload, message) != nil {
		return payload
	}
	var parts [][]byte
	stable := proto.MarshalOptions{Deterministic: true}
	message.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !field.IsList() || field.Message() == nil {
			return true
		}
		for i := range v.List().Len() {
			var part []byte
			if part, err = stable.Marshal(v.List().Get(i).Message().Interface()); err != nil {
				return false
			}
			parts = append(parts, part)
		}
		message.Clear(field)
		return true
	})
	rest, failed := stable.Marshal(message)
	if err != nil || failed != nil {
		return payload
	}
	slices.SortFunc(parts, bytes.Compare)
	return bytes.Join(append(parts, rest), nil)
}
