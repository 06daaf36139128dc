package contain_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/contain"
)

func ExampleDo() {
	contain.Notify(func(p *contain.Panic) { fmt.Println(p.What, "panicked:", p.Value) })
	err := contain.Do("StopContainer", func() error { panic("out of luck") })
	fmt.Println(status.Code(err))
	// Output:
	// StopContainer panicked: out of luck
	// Internal
}

func TestAPanicBecomesAnErrorThatIsToldOnce(t *testing.T) {
	var told []*contain.Panic
	contain.Notify(func(p *contain.Panic) { told = append(told, p) })
	before := contain.Count()
	err := contain.Run("ListContainers", func() { panic("hunter2") })
	require.Error(t, err)
	assert.Equal(t, before+1, contain.Count())
	require.Len(t, told, 1)
	assert.Equal(t, "hunter2", told[0].Value)
	assert.Contains(t, string(told[0].Stack), "TestAPanicBecomesAnErrorThatIsToldOnce")
	assert.NotContains(t, err.Error(), "hunter2", "clients are not told what may be from a message")

	wrapped := fmt.Errorf("asking: %w", err)
	assert.Equal(t, codes.Internal, status.Code(wrapped), "as gRPC's server looks at it")
	var p *contain.Panic
	assert.ErrorAs(t, wrapped, &p)
}

func TestWhatDoesNotPanicIsAsItWas(t *testing.T) {
	want := errors.New("no such container")
	assert.Equal(t, want, contain.Do("x", func() error { return want }))
	assert.NoError(t, contain.Run("x", func() {}))
}
