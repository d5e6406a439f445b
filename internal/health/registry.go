package health

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newRegistry is where a role registers what it counts; it says what is running.
func newRegistry(version, commit string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailplane_build_info", Help: "1; the labels say what is running."}, []string{"version", "commit"})
	build.WithLabelValues(version, commit).Set(1)
	r.MustRegister(build)
	return r
}

// newProcessRegistry also has the collectors of Go and the process, for roles that
// do not show controller-runtime's registry, which has them.
func newProcessRegistry(version, commit string) *prometheus.Registry {
	r := newRegistry(version, commit)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
