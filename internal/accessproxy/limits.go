package accessproxy

import (
	"fmt"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// Limits are what one device may use at the same time (law 4), so that it cannot take the proxy from all others. 0: no limit.
type Limits struct {
	Connections int // from one address
	Requests    int // without streams
	Streams     int // watches, followed logs and upgraded connections
}

// inUse counts the open requests and streams of each device.
type inUse struct {
	mu       sync.Mutex
	requests map[string]int // by id of the device
	streams  map[string]int
}

// admit counts the request for its device until it ends, or refuses it. The refusal of a stream has no Retry-After: clients
// would ask again by themselves, and a stream of the device must end first.
func (x *exchange) admit() error {
	u, limits, device := &x.proxy.inUse, x.proxy.Limits, x.caller.Device.ID
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.requests == nil {
		u.requests, u.streams = map[string]int{}, map[string]int{}
	}
	count, limit := u.requests, limits.Requests
	if x.isStream() {
		count, limit = u.streams, limits.Streams
	}
	if limit > 0 && count[device] >= limit {
		if x.isStream() {
			return problem.New(problem.RateLimited, fmt.Sprintf("The device has %d open streams, which is the limit.", limit), "End some of its watches, logs or sessions.")
		}
		return problem.New(problem.RateLimited, fmt.Sprintf("The device has %d requests at the same time, which is the limit.", limit)).WithRetryAfter(time.Second)
	}
	count[device]++
	x.release = func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if count[device]--; count[device] == 0 {
			delete(count, device)
		}
	}
	return nil
}
