package plane

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// maxDriftValue is the maximum length of a shown value, in bytes.
const maxDriftValue = 200

// difference is one field that differs.
type difference struct{ path, want, have string }

// differences appends the differences of the value at path, in path order. A value missing on one side is shown as null. Lists are compared
// as a whole.
func differences(path string, want, have any, all []difference) []difference {
	w, isMap := want.(map[string]any)
	h, both := have.(map[string]any)
	if isMap && both {
		keys := maps.Clone(w)
		maps.Copy(keys, h)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			all = differences(path+"."+k, w[k], h[k], all)
		}
		return all
	}
	if reflect.DeepEqual(want, have) {
		return all
	}
	return append(all, difference{path, driftValue(want), driftValue(have)})
}

func driftValue(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	if len(text) > maxDriftValue {
		return string(text[:maxDriftValue]) + "…"
	}
	return string(text)
}
