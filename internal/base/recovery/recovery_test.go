package recovery_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/criproxy/criproxy/internal/base/recovery"
)

func ExampleHook_Do() {
	hook := recovery.Hook(func(doing string, value any, _ []byte) { fmt.Println(doing, "panicked:", value) })
	err := hook.Do("StopContainer", func() error { panic("out of luck") })
	fmt.Println(status.Code(err))
	// Output:
	// StopContainer panicked: out of luck
	// Internal
}

func TestPanicBecomesAnErrorAndIsReportedOnce(t *testing.T) {
	var values, stacks []any
	recovery.Notify(func(_ string, value any, stack []byte) {
		values, stacks = append(values, value), append(stacks, string(stack))
	})
	before := recovery.Count()
	err := recovery.Run("ListContainers", func() { panic("hunter2") })
	require.Error(t, err)
	assert.Equal(t, before+1, recovery.Count())
	assert.Equal(t, []any{"hunter2"}, values)
	assert.Contains(t, stacks[0], "TestPanicBecomesAnErrorAndIsReportedOnce")
	assert.NotContains(t, err.Error(), "hunter2", "a panic may quote a message, which is not for clients")

	wrapped := fmt.Errorf("asking: %w", err)
	assert.Equal(t, codes.Internal, status.Code(wrapped), "as gRPC's server sees it")
	var p *recovery.Panic
	assert.ErrorAs(t, wrapped, &p)
}

func TestNilHookRecoversAndReportsNothing(t *testing.T) {
	before := recovery.Count()
	var hook recovery.Hook
	assert.Error(t, hook.Run("ListContainers", func() { panic("hunter2") }))
	assert.Equal(t, before, recovery.Count())
}
