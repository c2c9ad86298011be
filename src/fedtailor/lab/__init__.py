"""Compares methods: experiments, scenarios, baselines, results, reports."""
