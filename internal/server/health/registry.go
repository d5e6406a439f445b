package health

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newRegistry returns a registry with the build information of the running program.
func newRegistry(version, commit string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailplane_build_info", Help: "1; the labels describe the running program."}, []string{"version", "commit"})
	build.WithLabelValues(version, commit).Set(1)
	r.MustRegister(build)
	return r
}

// newProcessRegistry also has the Go and process collectors. Roles that serve controller-runtime's registry have these already.
func newProcessRegistry(version, commit string) *prometheus.Registry {
	r := newRegistry(version, commit)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
