package fakecri_test

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func Example() {
	rt := fakecri.New(fakecri.Config{Name: "alpha", Seed: 1})
	_, err := rt.RuntimeService().RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default"}},
	})
	if err != nil {
		fmt.Println(err)
	}
	for _, p := range rt.Pods() {
		fmt.Println(p.GetId()[:13], p.GetMetadata().GetName(), p.GetState())
	}
	// Output: b84fb46b9fe34 web SANDBOX_READY
}
