"""Exercises of the lessons: lesson_NN.py holds EXERCISES of notebooks/src/NN_*.py, in their order."""
