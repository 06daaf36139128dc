package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/testbed/internal/serial"
)

// patience bounds the duration of one list, as in kubelet.
const patience = 2 * time.Minute

// watch lists pods and containers again and again, on one connection, as kubelet does. It writes a line when an answer
// differs from the previous one, for each error, and once a second with the number of calls.
func watch(socket, path string, pause time.Duration) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: patience})) // bounds the wait for a process to accept
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	var last serial.Event
	var wrote time.Time
	for calls := 0; ; time.Sleep(pause) {
		now, err := list(client)
		calls += 2
		now.Calls, now.Uptime = calls, uptime()
		changed := !maps.Equal(now.Pods, last.Pods) || !maps.Equal(now.Containers, last.Containers)
		switch {
		case err != nil:
			now = serial.Event{Calls: calls, Uptime: now.Uptime, Error: err.Error()}
		case changed:
			last = now
		case time.Since(wrote) < time.Second:
			continue
		default:
			now.Pods, now.Containers = nil, nil
		}
		line, err := json.Marshal(now)
		if err != nil {
			return err
		}
		if _, err := file.Write(append(line, '\n')); err != nil {
			return err
		}
		wrote = time.Now()
		if now.Error != "" {
			time.Sleep(100 * time.Millisecond) // so that it does not fill the file while there is no socket
		}
	}
}

func list(client runtimeapi.RuntimeServiceClient) (serial.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e := serial.Event{Pods: map[string]string{}, Containers: map[string]string{}}
	pods, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return e, fmt.Errorf("ListPodSandbox: %w", err)
	}
	for _, p := range pods.Items {
		e.Pods[p.Id] = fmt.Sprintf("%s %s %d", p.Metadata.GetName(), p.State, p.Metadata.GetAttempt())
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return e, fmt.Errorf("ListContainers: %w", err)
	}
	for _, c := range containers.Containers {
		e.Containers[c.Id] = fmt.Sprintf("%s/%s %s %d", c.Labels["io.kubernetes.pod.name"], c.Metadata.GetName(), c.State, c.Metadata.GetAttempt())
	}
	return e, nil
}

func uptime() float64 {
	data, _ := os.ReadFile("/proc/uptime") // always exists
	first, _, _ := strings.Cut(string(data), " ")
	seconds, _ := strconv.ParseFloat(first, 64)
	return seconds
}
