package controller

import (
	"testing"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Requests that are triggered before the controller runs are reconciled once when it starts.
func TestEnqueuedBeforeStart(t *testing.T) {
	var b trigger
	b.enqueue("old-runners/old", "old-runners/older")
	b.enqueueNow("old-runners/old")
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	if err := b.source().Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for range 2 {
		r, _ := q.Get()
		got[r.Name] = true
		q.Done(r)
	}
	if len(got) != 2 || q.Len() != 0 {
		t.Errorf("%v, and %d more", got, q.Len())
	}
	b.enqueueNow("later")
	if r, _ := q.Get(); r.Name != "later" {
		t.Errorf("then %s", r.Name)
	}
}
