package criadapter_test

import (
	"fmt"
	"strings"

	"github.com/criproxy/criproxy/criadapter"
	"github.com/criproxy/criproxy/director"
)

func Example() {
	cfg, err := criadapter.Config(criadapter.Options{StreamURL: "http://10.0.0.1:11250"})
	if err != nil {
		fmt.Println(err)
	}
	cfg.Backends = []director.Backend{{}, {Name: "kata.io"}} // with a Conn each, to make calls
	d, err := director.New(cfg)
	if err != nil {
		fmt.Println(err)
	}
	for _, route := range d.Routes() {
		if strings.HasSuffix(route.Method, "/StopContainer") || strings.HasSuffix(route.Method, "/ListContainers") {
			fmt.Println(route.Method, route.Goes)
		}
	}
	// Output:
	// /runtime.v1.RuntimeService/StopContainer to the owner of container_id, else to the primary
	// /runtime.v1.RuntimeService/ListContainers to the owner of filter.id, filter.pod_sandbox_id, else to all
}
