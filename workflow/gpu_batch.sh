#!/bin/bash
# The runs of whole MobileNetV2 that data/frozen.json lists for CPUs, and their searches, on one GPU: bash workflow/gpu_batch.sh
# Searches of all methods run side by side, then the notebooks, each seed after seed. Whatever ends it, finished searches
# and runs are stored, and the next call goes on. DMLREPRO_DATA names the folder of images and weights.
set -eu
experiments() { OMP_NUM_THREADS=1 "${PYTHON:-.venv/bin/python}" -m experiments "$@" --profile small -p backbone mobilenet_v2; }

nvidia-cuda-mps-control -d || true # lets processes share the GPU at a time; without it they take turns
started=()
experiments tune 10 20 22 PFML CPML ProxyAnchor SoftTriple MultiSimilarity ProxyNCA++ Cosine L2 nivMF EL-vMF B-vMF \
    KL-vMF EL-nivMF ProxyAnchor+EL-nivMF Margin --jobs 15 & started+=($!)
experiments tune 32 MFCont MFCWMS --jobs 2 -p epochs 16 & started+=($!)
experiments tune 41 C2 C2-CCP-L --jobs 2 & started+=($!)
experiments tune 50 PLM STML-style Hierarchical --jobs 3 & started+=($!)
for search in "${started[@]}"; do wait "$search"; done # a search that failed ends the batch: its method would go untuned

started=()
experiments train 10 --jobs 6 -p small_dim 0 -p mlrc_steps 0 \
    -p methods "['untrained', 'PFML', 'CPML', 'ProxyAnchor', 'SoftTriple', 'MultiSimilarity', 'ProxyNCA++']" & started+=($!)
experiments train 22 --jobs 5 -p variant_steps 0 & started+=($!)
experiments train 32 --jobs 4 -p epochs 16 & started+=($!)
experiments train 20 --jobs 2 & started+=($!)
experiments train 41 --jobs 2 -p methods "['untrained', 'C2', 'C2-CCP-L']" & started+=($!)
experiments train 50 --jobs 3 -p methods "['untrained', 'PLM', 'STML-style', 'Hierarchical']" & started+=($!)
failed=0
for study in "${started[@]}"; do wait "$study" || failed=1; done
exit $failed
