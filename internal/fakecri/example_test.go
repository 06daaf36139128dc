package fakecri_test

import (
	"fmt"

	"github.com/criproxy/criproxy/internal/fakecri"
)

func Example() {
	rt := fakecri.New(fakecri.Config{Name: "alpha", Seed: 1})
	rt.Fill(1)
	for _, p := range rt.Pods() {
		fmt.Println(p.GetId()[:13], p.GetMetadata().GetName(), p.GetState())
	}
	// Output: b84fb46b9fe34 filled-000001 SANDBOX_READY
}
