package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/criproxy/criproxy/testbed/host"
	"github.com/criproxy/criproxy/testbed/internal/metrics"
)

// client is for requests to kubelets, whose certificates are self-signed.
var client = &http.Client{
	Timeout: 10 * time.Second,
	Transport: &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true, // a restarted kubelet is another server
		DisableCompression: true, // compressing costs more than it saves on one machine
	},
}

func (k *Kubelet) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking %s: %w", k.Title(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("testbed: asking %s: %w", k.Title(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("testbed: asking %s for %s: %s: %s", k.Title(), req.URL.Path, resp.Status, host.LastLines(string(body), 3))
	}
	return body, nil
}

func (k *Kubelet) healthy(ctx context.Context) error {
	_, err := k.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/healthz", k.ports.health))
	return err
}

// Page returns the kubelet's answer to a GET of path, such as /stats/summary.
func (k *Kubelet) Page(ctx context.Context, path string) ([]byte, error) {
	return k.get(ctx, fmt.Sprintf("http://%s:%d%s", k.Address, k.ports.readOnly, path))
}

// Pods returns the kubelet's pods, with the status that it would report.
func (k *Kubelet) Pods(ctx context.Context) ([]corev1.Pod, error) {
	body, err := k.Page(ctx, "/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("testbed: reading the pods of %s: %w", k.Title(), err)
	}
	return list.Items, nil
}

// Pod returns the pod of a manifest, or nil if there is none.
func (k *Kubelet) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pods, err := k.Pods(ctx)
	for i := range pods {
		if pods[i].Name == name+"-"+k.NodeName {
			return &pods[i], nil
		}
	}
	return nil, err
}

// WaitPod waits until a condition of a manifest's pod holds, and returns the pod; what describes the condition in errors.
// The condition gets nil while there is no pod. WaitPod waits for a minute if ctx has no deadline.
func (k *Kubelet) WaitPod(ctx context.Context, name, what string, wanted func(*corev1.Pod) bool) (*corev1.Pod, error) {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	var pod *corev1.Pod
	var last error
	err := host.Poll(ctx, "pod "+name+" "+what, func() bool {
		var now *corev1.Pod
		if now, last = k.Pod(ctx, name); last == nil {
			pod = now
		}
		return last == nil && wanted(pod)
	})
	if err != nil {
		status := "there is none"
		if pod != nil {
			text, _ := json.Marshal(pod.Status)
			status = string(text)
		}
		return pod, fmt.Errorf("%w: %s (%v)", err, status, last)
	}
	return pod, nil
}

// WaitRunning waits until the pod of a manifest is running and all its containers are ready, and returns it.
func (k *Kubelet) WaitRunning(ctx context.Context, name string) (*corev1.Pod, error) {
	return k.WaitPod(ctx, name, "to be ready", func(pod *corev1.Pod) bool {
		if pod == nil || pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) < len(pod.Spec.Containers) {
			return false
		}
		for _, c := range pod.Status.ContainerStatuses {
			if !c.Ready || c.State.Running == nil {
				return false
			}
		}
		return true
	})
}

// WaitRestarted waits until the first container of a manifest's pod has been restarted that often and is ready, and
// returns the pod.
func (k *Kubelet) WaitRestarted(ctx context.Context, name string, times int32) (*corev1.Pod, error) {
	return k.WaitPod(ctx, name, "to be restarted", func(pod *corev1.Pod) bool {
		if pod == nil || len(pod.Status.ContainerStatuses) == 0 {
			return false
		}
		first := pod.Status.ContainerStatuses[0]
		return first.RestartCount >= times && first.Ready && first.State.Running != nil
	})
}

// WaitGone waits until the kubelet has no pod of that name.
func (k *Kubelet) WaitGone(ctx context.Context, name string) error {
	_, err := k.WaitPod(ctx, name, "to go", func(pod *corev1.Pod) bool { return pod == nil })
	return err
}

// Metrics returns the kubelet's own metrics.
func (k *Kubelet) Metrics(ctx context.Context) (metrics.Metrics, error) {
	body, err := k.Page(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return metrics.Parse(string(body)), nil
}

// PLEGAge returns how long ago the kubelet last had a complete view of all pods, in whole seconds. Above three minutes
// a node is not ready. PLEGAge fails until the kubelet has had such a view.
func (k *Kubelet) PLEGAge(ctx context.Context) (time.Duration, error) {
	samples, err := k.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	seen := samples["kubelet_pleg_last_seen_seconds"]
	if seen == 0 {
		return 0, fmt.Errorf("testbed: %s has not listed all pods yet", k.Title())
	}
	return time.Since(time.Unix(int64(seen), 0)), nil
}

// api returns the URL of a container's resource in the kubelet's API: exec/NAMESPACE/POD/CONTAINER.
func (k *Kubelet) api(verb, pod, container string, query url.Values) *url.URL {
	return &url.URL{
		Scheme: "https", Host: fmt.Sprintf("%s:%d", k.Address, k.ports.api),
		Path:     fmt.Sprintf("/%s/testbed/%s-%s/%s", verb, pod, k.NodeName, container),
		RawQuery: query.Encode(),
	}
}

// Exec runs a command in a container of a manifest's pod, as kubectl exec would, and returns its output and its exit
// code. It fails if the command could not run, or has not ended after a minute if ctx has no deadline.
func (k *Kubelet) Exec(ctx context.Context, pod, container string, command ...string) (stdout string, code int, err error) {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	target := k.api("exec", pod, container, url.Values{"command": command, "output": {"1"}, "error": {"1"}})
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{
		Host: target.Host, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}, http.MethodPost, target)
	if err != nil {
		return "", 0, fmt.Errorf("testbed: running %q in pod %s: %w", command, pod, err)
	}
	var out, errs bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		return out.String(), exit.Code, nil
	}
	if err != nil {
		return out.String(), 0, fmt.Errorf("testbed: running %q in pod %s: %w: %s", command, pod, err, errs.String())
	}
	return out.String(), 0, nil
}

// WaitPrinted waits until a container of a manifest's pod has printed text and has written its log after since: an earlier
// pod of that name may have left its log. It reads the files, and asks nobody. A container counts as running before its
// program does, and a signal that comes so early is lost: what the program prints shows that it handles signals.
// WaitPrinted waits for a minute if ctx has no deadline.
func (k *Kubelet) WaitPrinted(ctx context.Context, name, text string, since time.Time) error {
	ctx, cancel := host.Bounded(ctx)
	defer cancel()
	return host.Poll(ctx, fmt.Sprintf("pod %s to print %q", name, text), func() bool {
		files, _ := filepath.Glob(k.at(fmt.Sprintf("logs/*_%s-%s_*/*/*.log", name, k.NodeName)))
		return slices.ContainsFunc(files, func(file string) bool {
			info, err := os.Stat(file)
			if err != nil || info.ModTime().Before(since) {
				return false
			}
			log, err := os.ReadFile(file)
			return err == nil && bytes.Contains(log, []byte(text))
		})
	})
}

// ContainerLog returns the output of a container of a manifest's pod, as kubectl logs would.
func (k *Kubelet) ContainerLog(ctx context.Context, pod, container string) (string, error) {
	body, err := k.get(ctx, k.api("containerLogs", pod, container, nil).String())
	return string(body), err
}
