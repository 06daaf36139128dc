package testbed_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/criproxy/criproxy/testbed/build"
	"github.com/criproxy/criproxy/testbed/runtimes"
)

// A program runs a pod on a containerd of its own. It is not run with the tests, because it needs root.
func Example() {
	ctx := context.Background()
	bin, err := build.Get(ctx, os.Stderr)
	if err != nil {
		log.Fatal(err)
	}
	reg, err := runtimes.StartRegistry(runtimes.RegistryConfig{App: bin.App})
	if err != nil {
		log.Fatal(err)
	}
	defer reg.Close()
	rt, err := runtimes.StartContainerd(ctx, runtimes.Config{Version: "2.4", Binaries: bin, Registry: reg.Addr})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Destroy(ctx)
	runtime, err := rt.Runtime(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close(ctx)
	id, err := runtime.RunPodSandbox(ctx, rt.PodConfig("web"), "")
	fmt.Println(id, err)
}
