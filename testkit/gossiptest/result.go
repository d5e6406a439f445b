package gossiptest

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Result is the outcome of a protocol in a scenario. Times are virtual.
type Result struct {
	Protocol string        `json:"protocol"`
	Join     time.Duration `json:"join"`  // until each member listed all members as alive; 0: not within Limit
	Death    time.Duration `json:"death"` // until all others detected the removed member; 0: not within Limit
	False    int           `json:"false"` // times that a member declared another, living member dead
	Messages float64       `json:"messages"`
	Bytes    float64       `json:"bytes"` // average sent per member and second during the quiet period
	Took     time.Duration `json:"took"`  // real time on this machine
	Skipped  string        `json:"skipped,omitempty"`
}

// Print writes a table with one line per result.
func Print(w io.Writer, s Scenario, all []Result) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", s); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\tall list all\ta death seen by all\tfalse deaths\tmessages/s\tkB/s\tsimulated in")
	for _, r := range all {
		if r.Skipped != "" {
			fmt.Fprintf(t, "%s\tskipped: %s\n", r.Protocol, r.Skipped)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%.1f\t%.1f\t%v\n", r.Protocol, reached(r.Join), reached(r.Death), r.False, r.Messages, r.Bytes/1000, r.Took.Round(10*time.Millisecond))
	}
	return t.Flush()
}

func reached(d time.Duration) string {
	if d == 0 {
		return fmt.Sprintf("not in %v", Limit)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
