package supervisor_test

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/proc/supervisor"
)

func Example() {
	fault, err := supervisor.ParseFault("kill:server:0@clock:100+2s")
	if err != nil {
		fmt.Println(err)
		return
	}
	schedule := supervisor.NewSchedule([]supervisor.Fault{fault})
	fmt.Println(schedule.Due(time.Second, 99))
	fmt.Println(schedule.Due(2*time.Second, 100))
	fmt.Println(schedule.Due(3*time.Second, 101))

	_, err = supervisor.ParseFault("kill:server:0")
	fmt.Println(err)
	// Output:
	// []
	// [kill:server:0@clock:100+2s]
	// []
	// perdure: usage: fault "kill:server:0": it has no time; add, for example, @12.5s or @clock:100
}
