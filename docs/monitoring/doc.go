// Package monitoring has a dashboard for Grafana and alerts for Prometheus over the metrics of promlimit, and the tests that
// hold them to the metrics. It exports nothing. How to read them is in docs/metrics.md.
package monitoring
