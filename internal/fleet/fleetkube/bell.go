package fleetkube

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type workqueueOf = workqueue.TypedRateLimitingInterface[reconcile.Request]

// A queue is a controller's, from when it runs on.
type queue struct {
	mu sync.Mutex
	of workqueueOf
}

func (q *queue) set(of workqueueOf) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of = of
}

func (q *queue) add(r reconcile.Request, after time.Duration) {
	q.mu.Lock()
	of := q.of
	q.mu.Unlock()
	if of != nil {
		of.AddAfter(r, after)
	}
}
