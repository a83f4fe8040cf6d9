"""Keeping slow machines from holding up fast ones: FlexRR, LB-BSP, ElasticBSP."""
