package plane_test

import "strings"

type sse struct{ id, name, data string }

// parseEvents reads an event stream as browsers do.
func parseEvents(text string) (events []sse) {
	for block := range strings.SplitSeq(text, "\n\n") {
		var e sse
		for line := range strings.SplitSeq(block, "\n") {
			field, value, _ := strings.Cut(line, ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			}
		}
		if e.name != "" || e.id != "" {
			events = append(events, e)
		}
	}
	return events
}
