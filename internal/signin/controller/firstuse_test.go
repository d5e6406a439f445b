package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The marks never exceed their number: before that, the key full is written, and nothing of this program removes it.
func TestFirstUseMarksAreBounded(t *testing.T) {
	m := new(corev1.ConfigMap)
	at := new("2026-11-21T12:00:00Z n1")
	for i := range maxFirstUseMarks + 10 {
		changeMarks(m, map[string]*string{fmt.Sprintf("alice-%d", i): at})
	}
	if got := len(m.Data); got != maxFirstUseMarks {
		t.Errorf("%d entries, want %d", got, maxFirstUseMarks)
	}
	if got := m.Data[firstUseFull]; got != "2026-11-21T12:00:00Z" {
		t.Errorf("full is %q, want the time", got)
	}
	if !changeMarks(m, map[string]*string{"alice-0": nil}) {
		t.Error("removing a mark changed nothing")
	}
	for name, value := range map[string]*string{"bob": at, "alice-1": at, "carol": nil} {
		if changeMarks(m, map[string]*string{name: value}) {
			t.Errorf("with full, %s changed something", name)
		}
	}
	if _, full := m.Data[firstUseFull]; !full {
		t.Error("full was removed")
	}
}
