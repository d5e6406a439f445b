package controller

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type workqueueOf = workqueue.TypedRateLimitingInterface[reconcile.Request]

// An earlyQueue is the workqueue of a controller. It keeps requests that arrive before the controller
// runs.
type earlyQueue struct {
	mu    sync.Mutex
	queue workqueueOf
	early map[reconcile.Request]bool
}

func (q *earlyQueue) set(of workqueueOf) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.early {
		of.Add(r)
	}
	q.queue, q.early = of, nil
}

func (q *earlyQueue) add(r reconcile.Request, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.queue != nil:
		q.queue.AddAfter(r, after)
	case q.early == nil:
		q.early = map[reconcile.Request]bool{r: true}
	default:
		q.early[r] = true
	}
}
