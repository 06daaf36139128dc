package recovery_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/recovery"
)

func ExampleDo() {
	recovery.Notify(func(p *recovery.Panic) { fmt.Println(p.What, "panicked:", p.Value) })
	err := recovery.Do("StopContainer", func() error { panic("out of luck") })
	fmt.Println(status.Code(err))
	// Output:
	// StopContainer panicked: out of luck
	// Internal
}

func TestAPanicBecomesAnErrorThatIsToldOnce(t *testing.T) {
	var told []*recovery.Panic
	recovery.Notify(func(p *recovery.Panic) { told = append(told, p) })
	before := recovery.Count()
	err := recovery.Run("ListContainers", func() { panic("hunter2") })
	require.Error(t, err)
	assert.Equal(t, before+1, recovery.Count())
	require.Len(t, told, 1)
	assert.Equal(t, "hunter2", told[0].Value)
	assert.Contains(t, string(told[0].Stack), "TestAPanicBecomesAnErrorThatIsToldOnce")
	assert.NotContains(t, err.Error(), "hunter2", "clients are not told what may be from a message")

	wrapped := fmt.Errorf("asking: %w", err)
	assert.Equal(t, codes.Internal, status.Code(wrapped), "as gRPC's server looks at it")
	var p *recovery.Panic
	assert.ErrorAs(t, wrapped, &p)
}

func TestWhatDoesNotPanicIsAsItWas(t *testing.T) {
	want := errors.New("no such container")
	assert.Equal(t, want, recovery.Do("x", func() error { return want }))
	assert.NoError(t, recovery.Run("x", func() {}))
}
