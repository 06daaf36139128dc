package limits

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/criproxy/criproxy/director"
	"github.com/criproxy/criproxy/internal/backend"
	"github.com/criproxy/criproxy/internal/config"
)

func TestTheMemoryForMessagesFollowsGOMEMLIMIT(t *testing.T) {
	const mib = 1 << 20
	assert.EqualValues(t, 1024*mib, memoryFor(1<<63-1, 8*mib, 16*mib), "no limit")
	assert.EqualValues(t, (512-128-8)*mib/3, memoryFor(512*mib, 8*mib, 16*mib))
	assert.EqualValues(t, 128*mib, memoryFor(512*mib, -1, 16*mib), "nothing is recorded")
	assert.EqualValues(t, 64*mib, memoryFor(200*mib, 8*mib, 16*mib), "four messages must fit")
}

func TestTheDocsHaveTheFormulaOfTheProgram(t *testing.T) {
	data, err := os.ReadFile("../../../docs/operations.md")
	require.NoError(t, err)
	const mib = 1 << 20
	for _, text := range []string{
		fmt.Sprintf("(GOMEMLIMIT - %d MiB - flight recorder) / %d        at least %d messages of the largest size", baseMemory/mib, copies, leastMessages),
		fmt.Sprintf("set `GOMEMLIMIT` to %d MiB + %d·N·S", (baseMemory+config.DefaultRecorder)/mib, copies),
		fmt.Sprintf("With 512 MiB that is %d MiB of messages", memoryFor(512*mib, config.DefaultRecorder, 16*mib)/mib),
		fmt.Sprintf("follows `GOMEMLIMIT`, below; %d GiB without it", defaultMemory>>30),
		fmt.Sprintf("waits for up to %s, then fails", MemoryWait),
		fmt.Sprintf("`maxCalls` of the listener: %d on the main one, %d on each other one", config.DefaultMaxCalls, config.DefaultSideCalls),
		fmt.Sprintf("`maxCalls` of the backend, %d", config.DefaultMaxCalls),
		fmt.Sprintf("`-max-message-bytes`, %d MiB", director.DefaultMaxMessage/mib),
		fmt.Sprintf("`-flight-recorder`, %d MiB", config.DefaultRecorder/mib),
		fmt.Sprintf("what criproxy remembers of a runtime | %d MiB", backend.DefaultMaxBytes/mib),
		fmt.Sprintf("the time is %s (half of `listBudget`, at most %s)", backend.DefaultBudget/2, MemoryWait),
		fmt.Sprintf("Messages below %d KiB are not counted", smallMessage>>10),
		fmt.Sprintf("MemoryMax=%dM", 512+512/2), // as TestMemoryStaysNearGOMEMLIMIT holds
	} {
		assert.Contains(t, strings.Join(strings.Fields(string(data)), " "), strings.Join(strings.Fields(text), " "))
	}
	assert.EqualValues(t, 368*mib/3, memoryFor(512*mib, config.DefaultRecorder, 16*mib), "the example")
}
