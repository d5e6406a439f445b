package fleetkube

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type workqueueOf = workqueue.TypedRateLimitingInterface[reconcile.Request]

// A queue is the workqueue of a controller. It keeps requests that arrive before the controller
// runs.
type queue struct {
	mu    sync.Mutex
	of    workqueueOf
	early map[reconcile.Request]bool
}

func (q *queue) set(of workqueueOf) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range q.early {
		of.Add(r)
	}
	q.of, q.early = of, nil
}

func (q *queue) add(r reconcile.Request, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.of != nil:
		q.of.AddAfter(r, after)
	case q.early == nil:
		q.early = map[reconcile.Request]bool{r: true}
	default:
		q.early[r] = true
	}
}
