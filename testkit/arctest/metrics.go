//go:build unix

package arctest

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// serveMetrics serves a listener's job metrics on loopback and returns the port. All successive listeners of a set
// use the same port.
func (a *ARC) serveMetrics(set types.NamespacedName) (port int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.metrics[set] != nil {
		return a.ports[set], nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", set, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		_, taken, running := a.Jobs(set.Namespace, set.Name)
		labels := fmt.Sprintf("{enterprise=\"\",name=%q,namespace=%q,organization=\"\",repository=\"\"}", set.Name, set.Namespace)
		// GitHub counts running jobs as assigned too.
		fmt.Fprintf(w, "# HELP gha_assigned_jobs Number of jobs assigned to this scale set.\n# TYPE gha_assigned_jobs gauge\ngha_assigned_jobs%s %d\n", labels, taken+running)
		fmt.Fprintf(w, "# HELP gha_running_jobs Number of jobs running (or about to be run).\n# TYPE gha_running_jobs gauge\ngha_running_jobs%s %d\n", labels, running)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	a.metrics[set], a.ports[set] = s, int64(l.Addr().(*net.TCPAddr).Port)
	go s.Serve(l) // until it is closed
	return a.ports[set], nil
}

func (a *ARC) closeMetrics() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.metrics {
		s.Close()
	}
}
