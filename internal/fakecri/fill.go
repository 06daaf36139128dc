package fakecri

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fill adds n pods, each with a running container and its own image. Each of these takes
// Config.ItemBytes in a list: 18650 items of the default size make a list of 16 MiB. Fill sends no
// events. It may be called more than once.
func (rt *Runtime) Fill(n int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var podPad, containerPad, imagePad string
	for range n {
		rt.filled++
		name := fmt.Sprintf("filled-%06d", rt.filled)
		tag := "fill.example.com/" + name + ":v1"
		manifest, id := digests(tag)
		image := rt.images.byIDOrNew(id)
		rt.images.name(image, tag)
		rt.images.name(image, repository(tag)+"@"+manifest)
		if imagePad != "" {
			rt.images.name(image, "mirror.example.com/"+imagePad+"/"+name+":v1")
		}

		p := &pod{id: rt.newID(), name: "filled pod " + name, ready: true, createdAt: rt.now(), ip: "10.99.0.1"}
		p.config = &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "fill", Uid: name},
			Labels: map[string]string{
				"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "fill", "io.kubernetes.pod.uid": name,
			},
			Annotations: map[string]string{"kubernetes.io/config.source": "api", "fill": podPad},
		}
		rt.names[p.name] = p.id
		rt.pods.add(p.id, p)

		c := &container{
			id: rt.newID(), name: "filled container " + name, pod: p, imageID: image.id, createdAt: p.createdAt, startedAt: p.createdAt,
			state: runtimeapi.ContainerState_CONTAINER_RUNNING,
		}
		c.config = &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: "main"},
			Image:       &runtimeapi.ImageSpec{Image: image.id, UserSpecifiedImage: tag},
			Labels:      map[string]string{"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "fill", "io.kubernetes.pod.uid": name},
			Annotations: map[string]string{"io.kubernetes.container.hash": "7f", "fill": containerPad},
		}
		p.containers = []*container{c}
		rt.names[c.name] = c.id
		rt.containers.add(c.id, c)

		if podPad == "" { // the first pod is small, and shows how much padding the others need
			podPad, containerPad = rt.pad(p.listed(), 0), rt.pad(c.listed(), 0)
			imagePad = rt.pad(image.listed(), len("mirror.example.com//"+name+":v1"))
		}
	}
}

// pad returns the padding that brings a message of m's size, plus more bytes, to the wanted size.
func (rt *Runtime) pad(m proto.Message, more int) string {
	return strings.Repeat("x", max(0, rt.cfg.ItemBytes-proto.Size(m)-more))
}
