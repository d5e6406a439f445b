package plane

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// PLANE-12: a client with all topics receives every kind of the store, and every topic has its kinds.
func TestEveryKindHasATopic(t *testing.T) {
	source, err := os.ReadFile("store.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := regexp.MustCompile(`(?m)^\tKind\w+ +Kind = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(kinds) < 12 {
		t.Fatalf("%d kinds", len(kinds))
	}
	for _, k := range kinds {
		if kind := Kind(k[1]); !slices.Contains(Topics(nil).kinds(), kind) || kind.readVerb() == "" {
			t.Errorf("no topic has %s", kind)
		}
	}
	for topic, of := range topicKinds {
		if !slices.Equal(Topics{topic}.kinds(), of) {
			t.Errorf("%s brings %v, not %v", topic, Topics{topic}.kinds(), of)
		}
	}
}
